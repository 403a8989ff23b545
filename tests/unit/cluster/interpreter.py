"""The commands of the scenario files, and how what is decided is written down.

    start 1 2 3 [racks=a,b,c]            brokers join and register for the first time
    topic t replicas=1,2,3/2,3,1 [unclean=true] [min=2] | topic t partitions=3 factor=2 | grow t 4 [replicas=1,2]
    die 1 2                              their memberships end
    return 1 [unclean] [empty]           it joins in a new life and registers; clean, unless told otherwise
    stop 1 | disk 1 t-0 ...              a controlled shutdown; a disk fails under these replicas
    forget 1                             an operator says that it will not come back
    isr t-0 1,2 [by=] [leader-epoch=] [partition-epoch=] [epoch=]    a leader proposes in-sync replicas
    elect preferred|unclean [t-0 ...] | balance [percentage]
    reassign t-0 4,5 [same-factor] | cancel t-0 | moving [t-0 ...]
    default unclean.leader.election.enable=true                      a dynamic setting of all brokers
    unnoticed <command>                  as the command, but the controller does not look afterwards
    look [members=1,2]                   the controller looks; it may know of these members only

After each command the senior member looks at who is alive and appends what follows. Every record is a line: a partition
is written with its leader, the leader's epoch and its in-sync replicas, and with its replicas where those change.
What must hold of any partition at any time is asserted along the way.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from flowstone.cluster.decisions.elections import ElectionType, balance_leaders, elect_leaders, reconcile
from flowstone.cluster.decisions.in_sync_changes import change_in_sync
from flowstone.cluster.decisions.partition_plans import NewPartitions, NewTopic
from flowstone.cluster.decisions.partition_states import TopicRules, alive_brokers
from flowstone.cluster.decisions.reassignments import WantedReplicas, alter_reassignments, list_reassignments
from flowstone.cluster.decisions.registration import register_broker
from flowstone.cluster.decisions.topic_changes import TopicResult, create_partitions, create_topics
from flowstone.cluster.decisions.withdrawals import replica_failed, shut_down, unregister_broker
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, NO_LEADER, BrokerImage, ClusterImage, PartitionImage
from flowstone.cluster.image.records import (
    BrokerConfigChanged,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnregistered,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
)
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.consensus import Member
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode, StartupError
from flowstone.types import TopicPartition

CONFIG = BrokerConfig()
IMBALANCE_PERCENTAGE = "10"
_SETTINGS = {"unclean": "unclean.leader.election.enable", "min": "min.insync.replicas"}
LEADER_SETTINGS_OF = 1
Options = dict[str, str]


class Interpreter:
    def __init__(self) -> None:
        self.image = EMPTY_IMAGE
        self.members: list[Member] = []
        self.lines: list[str] = []
        self._lagging: set[int] = set()  # whom the proposal under way takes out of the ISR
        self._lives = itertools.count(1)
        self._ids = itertools.count(1)

    def run(self, command: str) -> list[str]:
        self.lines, self._lagging = [], set()
        verb, *words = command.split()
        notices = verb not in ("unnoticed", "look")
        if verb == "unnoticed":
            verb, *words = words
        names = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, "do_" + verb)(names, options)
        if notices:
            self._look(self.members)
        return [line for line in self.lines if not (verb == "start" and line.startswith("broker"))]

    # Brokers

    def do_start(self, names: list[str], options: Options) -> None:
        racks = options["racks"].split(",") if "racks" in options else [None] * len(names)
        for name, rack in zip(names, racks, strict=True):
            self._register(BrokerImage(int(name), rack, {}))

    def do_die(self, names: list[str], options: Options) -> None:
        self.members = [member for member in self.members if str(member.node_id) not in names]

    def do_return(self, names: list[str], options: Options) -> None:
        node_id = int(names[0])
        self.members = [member for member in self.members if member.node_id != node_id]
        broker = self.image.brokers.get(node_id, BrokerImage(node_id, None, {}))
        self._register(broker, is_clean="unclean" not in names, is_empty="empty" in names)

    def _register(self, broker: BrokerImage, *, is_clean: bool = True, is_empty: bool = False) -> None:
        member = Member(broker.node_id, f"life-{next(self._lives)}")
        broker = BrokerImage(broker.node_id, broker.rack, broker.listeners, member.incarnation)
        try:
            records, registration = register_broker(
                self.image, broker, is_clean=is_clean, new_id=self._new_id, is_empty=is_empty
            )
        except StartupError as error:
            self.lines.append(f"refused: {error}")
            return
        self.members.append(member)
        self._append(records)
        assert self.image.brokers[broker.node_id].epoch == registration.epoch

    def do_stop(self, names: list[str], options: Options) -> None:
        node_id = int(names[0])
        epoch = int(options.get("epoch", self.image.brokers[node_id].epoch if node_id in self.image.brokers else 0))
        try:
            records, leads = shut_down(self.image, node_id, epoch)
        except ApiError as error:
            self.lines.append(f"answer: {error.code.name}")
            return
        self._append(records)
        self.lines.append(f"answer: leads {leads} partitions")

    def do_disk(self, names: list[str], options: Options) -> None:
        partitions = [(self._topic_id(each.topic), each.partition) for each in map(_partition, names[1:])]
        records, left = replica_failed(self.image, int(names[0]), partitions)
        self._append(records)
        self.lines += [f"answer: {partition} has no other replica in sync" for partition in left]

    def do_forget(self, names: list[str], options: Options) -> None:
        try:
            records, _ = unregister_broker(self.image, int(names[0]))
        except ApiError as error:
            self.lines.append(f"answer: {error.code.name}: {error.message}")
            return
        self._append(records)

    def do_default(self, names: list[str], options: Options) -> None:
        self._append([BrokerConfigChanged("", dict(options))])

    def do_look(self, names: list[str], options: Options) -> None:
        known = options.get("members", ",".join(str(each.node_id) for each in self.members)).split(",")
        self._look([member for member in self.members if str(member.node_id) in known])

    def _look(self, members: Sequence[Member]) -> None:
        if members:
            me = members[0].node_id
            self._append(reconcile(self.image, members, me))
            assert reconcile(self.image, members, me) == [], "whoever looks twice finds nothing more to do"
            assert all(reconcile(self.image, members, other.node_id) == [] for other in members[1:])

    # Topics

    def do_topic(self, names: list[str], options: Options) -> None:
        assignments = [(index, each) for index, each in enumerate(_assignments(options.get("replicas", "")))]
        topic = NewTopic(
            names[0],
            int(options.get("partitions", "-1")),
            int(options.get("factor", "-1")),
            assignments,
            [(_SETTINGS[name], value) for name, value in options.items() if name in _SETTINGS],
        )
        self._answer_topics(*create_topics(self.image, [topic], CONFIG, self._new_id))

    def do_grow(self, names: list[str], options: Options) -> None:
        assignments = _assignments(options["replicas"]) if "replicas" in options else None
        wanted = NewPartitions(names[0], int(names[1]), assignments)
        self._answer_topics(*create_partitions(self.image, [wanted], CONFIG))

    def _answer_topics(self, records: list[MetadataRecord], results: list[TopicResult]) -> None:
        self._append(records)
        self.lines += [f"answer: {each.error.name} {each.message}" for each in results if each.error != ErrorCode.NONE]

    # Partitions

    def do_isr(self, names: list[str], options: Options) -> None:
        partition = _partition(names[0])
        state = self.image.partition(partition) or PartitionImage(NO_LEADER, 0, 0, (), ())
        members = [int(each) for each in names[1].split(",")]
        self._lagging = set(state.isr) - set(members)
        epochs = {node_id: broker.epoch for node_id, broker in self.image.brokers.items()}
        records, result = change_in_sync(
            self.image,
            self._topic_id(partition.topic),
            partition.partition,
            leader=int(options.get("by", state.leader)),
            leader_epoch=int(options.get("leader-epoch", state.leader_epoch)),
            partition_epoch=int(options.get("partition-epoch", state.partition_epoch)),
            isr=[(each, int(options.get("epoch", epochs[each]))) for each in members],
            min_insync=self._min_insync(partition.topic),
        )
        self._append(records)
        assert result.state == self.image.partition(partition)
        if result.error != ErrorCode.NONE:
            self.lines.append(f"answer: {result.error.name}")

    def _min_insync(self, topic: str) -> int:
        known = self.image.topics.get(topic)
        return 1 if known is None else TopicRules(self.image, {}, LEADER_SETTINGS_OF).min_insync(known)

    def do_elect(self, names: list[str], options: Options) -> None:
        partitions = [_partition(each) for each in names[1:]] or None
        records, results = elect_leaders(self.image, ElectionType[names[0].upper()], partitions)
        self._append(records)
        self.lines += [f"answer: {each.partition} {each.error.name}" for each in results]

    def do_balance(self, names: list[str], options: Options) -> None:
        records, moved = balance_leaders(self.image, int(*(names or [IMBALANCE_PERCENTAGE])))
        assert moved == len(records)
        self._append(records)

    def do_reassign(self, names: list[str], options: Options) -> None:
        wanted = [WantedReplicas(_partition(names[0]), _node_ids(names[1]))]
        self._answer_moves(wanted, may_change_factor="same-factor" not in names)

    def do_cancel(self, names: list[str], options: Options) -> None:
        self._answer_moves([WantedReplicas(_partition(each), None) for each in names])

    def _answer_moves(self, wanted: list[WantedReplicas], *, may_change_factor: bool = True) -> None:
        records, results = alter_reassignments(self.image, wanted, may_change_factor=may_change_factor)
        self._append(records)
        self.lines += [f"answer: {each.error.name} {each.message}" for each in results if each.error != ErrorCode.NONE]

    def do_moving(self, names: list[str], options: Options) -> None:
        moving = list_reassignments(self.image, [_partition(each) for each in names] or None)
        self.lines += [f"answer: {each} {_replicas(state)}" for each, state in moving] or ["answer: none"]

    # What is decided

    def _append(self, records: Sequence[MetadataRecord]) -> None:
        for record in records:
            before, self.image = self.image, apply(self.image, [record])
            self._write(record, before)

    def _write(self, record: MetadataRecord, before: ClusterImage) -> None:
        match record:
            case BrokerRegistered(broker):
                self.lines.append(f"broker {broker.node_id}: {self._registered(broker, before)}")
            case BrokerFenced(node_id, _):
                self.lines.append(f"broker {node_id}: fenced")
            case BrokerUnregistered(node_id, _):
                self.lines.append(f"broker {node_id}: unregistered")
            case ControllerElected(node_id, epoch):
                self.lines.append(f"controller: {node_id} in epoch {epoch}")
            case TopicCreated(name, _, partitions, _):
                self._write_new(name, 0, partitions)
            case PartitionsAdded(topic_id, partitions):
                topic = before.topics_by_id[topic_id]
                self._write_new(topic.name, len(topic.partitions), partitions)
            case PartitionChanged(topic_id, partition, state):
                topic = before.topics_by_id[topic_id]
                was = topic.partitions[partition]
                _check_change(was, state)
                _check_end_of_move(was, state, alive_brokers(before) - self._lagging)
                text = f"{topic.name}-{partition}: {_leader_and_isr(state)}"
                has_other_replicas = was.replicas != state.replicas or was.adding or state.adding or state.removing
                self.lines.append(f"{text}, {_replicas(state)}" if has_other_replicas else text)

    def _registered(self, broker: BrokerImage, before: ClusterImage) -> str:
        was = before.brokers.get(broker.node_id)
        if broker.is_fenced:
            return "fenced by itself"
        return "alive again" if was is not None and was.epoch == broker.epoch else "registered"

    def _write_new(self, topic: str, first: int, partitions: Sequence[PartitionImage]) -> None:
        for number, state in enumerate(partitions, first):
            self.lines.append(f"{topic}-{number}: {_leader_and_isr(state)}, {_replicas(state)}")

    def _topic_id(self, name: str) -> bytes:
        topic = self.image.topics.get(name)
        return bytes(16) if topic is None else topic.topic_id

    def _new_id(self) -> bytes:
        return next(self._ids).to_bytes(16, "big")


def _check_change(was: PartitionImage, state: PartitionImage) -> None:
    assert state.isr
    assert set(state.isr) <= set(state.replicas)
    assert len(set(state.replicas)) == len(state.replicas)
    assert state.leader == NO_LEADER or state.leader in state.isr
    assert set(state.adding) | set(state.removing) <= set(state.replicas)
    assert state.partition_epoch == was.partition_epoch + 1
    assert state.leader_epoch >= was.leader_epoch + (state.leader != was.leader)


def _check_end_of_move(was: PartitionImage, state: PartitionImage, present: set[int]) -> None:
    """A move that ended left no fewer replicas in sync than there were without those that came, or all of them."""
    target = tuple(node_id for node_id in was.replicas if node_id not in was.removing)
    if was.removing and not state.removing and set(state.replicas) == set(target):
        before = [node_id for node_id in was.isr if node_id in present and node_id not in was.adding]
        assert len(state.isr) >= min(len(target), len(before))


def _leader_and_isr(state: PartitionImage) -> str:
    leader = "nobody leads" if state.leader == NO_LEADER else f"{state.leader} leads"
    return f"{leader} in epoch {state.leader_epoch}, isr {_text(state.isr)}"


def _replicas(state: PartitionImage) -> str:
    moves = [f"{word} {_text(ids)}" for word, ids in (("adding", state.adding), ("removing", state.removing)) if ids]
    return " ".join([f"replicas {_text(state.replicas)}", *moves])


def _text(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids))


def _node_ids(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def _assignments(text: str) -> list[list[int]]:
    return [_node_ids(each) for each in text.split("/") if each]


def _partition(text: str) -> TopicPartition:
    topic, partition = text.rsplit("-", 1)
    return TopicPartition(topic, int(partition))
