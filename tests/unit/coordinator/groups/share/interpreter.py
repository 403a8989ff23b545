"""The commands of the scenario files of share groups, and how what happens is written down.

topics t=4 u=2                the cluster's topics, with their partitions; a topic that is missing was deleted
join a topics=t [rack=]       a heartbeat with epoch 0; beat a [topics=] [epoch=] [member=] [group=] [rack=]
leave a                       a heartbeat with epoch -1
initialize | fail             the share coordinator has created the state that was asked for, or could not
form a b topics=t             joins and beats until these are members of one assignment
begin-reset t=0,1 | end-reset t=0,1     as AlterShareGroupOffsets does it, before and after the state is changed
begin-deletion [t ...] | end-deletion t ...     as DeleteShareGroupOffsets and DeleteGroups do it
offsets                       the partitions that have state
list [states=] [types=] | describe | describe-classic | delete-group
classic-join x | commit t-0=5 | delete-offsets t-0        as clients of the classic protocol do it
wait 3000                     milliseconds
restart [config=value ...]    the coordinator moves: the log is replayed elsewhere
setting name=value            a setting of the group
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flowstone.config import GroupSettings
from flowstone.coordinator.effects import Effects
from flowstone.coordinator.groups import messages as classic
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.records import GroupRecord
from flowstone.coordinator.groups.share import messages as m
from flowstone.coordinator.groups.share.offsets import Begun
from flowstone.coordinator.groups.share_records import (
    ShareGroupStored,
    ShareMemberCurrentStored,
    ShareMemberStored,
    ShareMemberTargetStored,
    ShareRecordRemoved,
    ShareStatesStored,
    ShareTargetStored,
    TopicPartitions,
    TopicState,
)
from flowstone.coordinator.groups.topics import GroupTopic
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition
from tests.unit.coordinator.groups.harness import START_MS, Coordinator, subscription
from tests.unit.coordinator.groups.trace import said as classic_said
from tests.unit.coordinator.groups.trace import stored as classic_stored

Options = dict[str, str]


class NamedTopics:
    """The topics of a scenario. A topic that is made again has another id."""

    def __init__(self) -> None:
        self.version = 0
        self._topics: dict[str, GroupTopic] = {}

    def become(self, counts: dict[str, int]) -> frozenset[bytes]:
        """Set the topics; return the ids of those that are gone."""
        self.version += 1
        before = self._topics
        self._topics = {
            name: GroupTopic(name, before[name].topic_id if name in before else self._new_id(name), count)
            for name, count in counts.items()
        }
        return frozenset(topic.topic_id for name, topic in before.items() if name not in counts)

    def _new_id(self, name: str) -> bytes:
        return f"{name}{self.version}".encode().ljust(16)

    def partition_count(self, name: str) -> int:
        topic = self._topics.get(name)
        return 0 if topic is None else topic.partition_count

    def find(self, name: str) -> GroupTopic | None:
        return self._topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, topic in self._topics.items() if topic.topic_id == topic_id), None)


@dataclass
class Client:
    name: str
    epoch: int = 0


class Interpreter:
    def __init__(self) -> None:
        self.topics = NamedTopics()
        self.coordinator = Coordinator(GroupConfig(), self._reply, self.topics)
        self.coordinator.settings = self._settings
        self.coordinator.reload()
        self.settings = GroupSettings()
        self.clients: dict[str, Client] = {}
        self.tasks: list[m.InitializeStates] = []
        self.lines: list[str] = []

    def run(self, command: str) -> list[str]:
        self.lines = []
        verb, *words = command.split()
        names = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, "do_" + verb.replace("-", "_"))(names, options)
        return self.lines

    def _settings(self, group_id: str) -> GroupSettings:
        return self.settings

    # The cluster

    def do_topics(self, names: list[str], options: Options) -> None:
        gone = self.topics.become({name: int(count) for name, count in options.items()})
        if gone:
            self._take(self.coordinator.shard.remove_topics(self.coordinator.now_ms, gone))

    def do_setting(self, names: list[str], options: Options) -> None:
        self.settings = replace(self.settings, **{key: int(value) for key, value in options.items()})

    def do_initialize(self, names: list[str], options: Options) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            now_ms, shard = self.coordinator.now_ms, self.coordinator.shard
            self._take(shard.share_states_initialized(now_ms, task.group_id, task.partitions))

    def do_fail(self, names: list[str], options: Options) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            self._take(self.coordinator.shard.share_states_failed(self.coordinator.now_ms, task.group_id))

    # Members

    def do_join(self, names: list[str], options: Options) -> None:
        for name in names:
            self.clients.setdefault(name, Client(name)).epoch = 0
            self.do_beat([name], options)

    def do_leave(self, names: list[str], options: Options) -> None:
        self.do_beat(names, options | {"epoch": "-1"})

    def do_beat(self, names: list[str], options: Options) -> None:
        for name in names:
            client = self.clients.setdefault(name, Client(name))
            topics = options.get("topics")
            request = m.ShareHeartbeatRequest(
                options.get("group", "g"),
                options.get("member", name),
                int(options.get("epoch", client.epoch)),
                options.get("rack"),
                None if topics is None else tuple(filter(None, topics.split(","))),
                name,
                "/127.0.0.1",
            )
            self._ask(name, self.coordinator.shard.share_heartbeat, request)

    def do_form(self, names: list[str], options: Options) -> None:
        self.do_join(names, options)
        self.do_initialize([], {})
        for _ in range(2):
            self.coordinator.now_ms += self.settings.share_assignment_interval_ms
            self.do_beat(names, {})
        described = self._described()
        self.lines = [_group(described, self.topics)]

    # Operators and other clients

    def do_describe(self, names: list[str], options: Options) -> None:
        group = self._described(options.get("group", "g"))
        if group.error_code is not ErrorCode.NONE:
            self.lines.append(f"operator: {group.error_code.name} {group.state}")
            return
        self.lines.append(_group(group, self.topics))
        for member in group.members:
            topics = ",".join(member.subscribed_topics)
            rack = f" rack={member.rack_id}" if member.rack_id else ""
            self.lines.append(f"  {member.member_id}: epoch={member.member_epoch} topics={topics}{rack}")

    def _described(self, group_id: str = "g") -> m.DescribedShareGroup:
        now_ms, shard = self.coordinator.now_ms, self.coordinator.shard
        ((_, group),) = shard.describe_share_group(now_ms, None, group_id).replies
        assert isinstance(group, m.DescribedShareGroup)
        return group

    def do_describe_classic(self, names: list[str], options: Options) -> None:
        self._ask("operator", self.coordinator.shard.describe_group, "g")

    def do_list(self, names: list[str], options: Options) -> None:
        states, types = (tuple(options[key].split(",")) if key in options else () for key in ("states", "types"))
        ((_, listed),) = self.coordinator.shard.list_groups(
            self.coordinator.now_ms, None, classic.ListGroupsRequest(states, types)
        ).replies
        groups = " ".join(f"{each.group_id}={each.type}:{each.state}:{each.protocol_type}" for each in listed.groups)
        self.lines.append(f"operator: {groups or 'nothing'}")

    def do_delete_group(self, names: list[str], options: Options) -> None:
        self._ask("operator", self.coordinator.shard.delete_groups, names or ["g"])

    def do_begin_reset(self, names: list[str], options: Options) -> None:
        topics = {name: tuple(map(int, indexes.split(","))) for name, indexes in options.items()}
        self._ask_about(self.coordinator.shard.begin_share_reset, topics)

    def do_end_reset(self, names: list[str], options: Options) -> None:
        done = {self._id(name): tuple(map(int, indexes.split(","))) for name, indexes in options.items()}
        self._ask_about(self.coordinator.shard.end_share_reset, done)

    def do_begin_deletion(self, names: list[str], options: Options) -> None:
        topic_ids = frozenset(self._id(name) for name in names) if names else None
        self._ask_about(self.coordinator.shard.begin_share_deletion, topic_ids)

    def do_end_deletion(self, names: list[str], options: Options) -> None:
        self._ask_about(self.coordinator.shard.end_share_deletion, frozenset(self._id(name) for name in names))

    def do_offsets(self, names: list[str], options: Options) -> None:
        self._ask("operator", self.coordinator.shard.describe_share_offsets, "g")

    def _ask_about(self, method: Any, argument: Any) -> None:
        self._take(method(self.coordinator.now_ms, ("operator", []), "g", argument))

    def _id(self, name: str) -> bytes:
        topic = self.topics.find(name)
        assert topic is not None
        return topic.topic_id

    def do_classic_join(self, names: list[str], options: Options) -> None:
        metadata = (("range", subscription(["t"])),)
        request = classic.JoinRequest("g", 10000, 60000, "consumer", metadata, "", None, names[0], "/127.0.0.1")
        self._ask(names[0], self.coordinator.shard.join, request)

    def do_commit(self, names: list[str], options: Options) -> None:
        offsets = [(*_partition(key), int(value), -1, "") for key, value in options.items()]
        self._ask("nobody", self.coordinator.shard.commit_offsets, classic.CommitRequest("g", offsets), list(options))

    def do_delete_offsets(self, names: list[str], options: Options) -> None:
        partitions = tuple(_partition(name) for name in names)
        self._ask(
            "operator", self.coordinator.shard.delete_offsets, classic.DeleteOffsetsRequest("g", partitions), names
        )

    # Time

    def do_wait(self, names: list[str], options: Options) -> None:
        end_ms = self.coordinator.now_ms + int(names[0])
        shard = self.coordinator.shard
        while (deadline_ms := shard.next_deadline()) is not None and deadline_ms <= end_ms:
            self.coordinator.now_ms = deadline_ms
            effects = shard.tick(deadline_ms)
            if effects.records:
                self.lines.append(f"at {deadline_ms - START_MS}:")
            self._take(effects)
        self.coordinator.now_ms = end_ms

    def do_restart(self, names: list[str], options: Options) -> None:
        config = {key: int(value) for key, value in options.items()}
        self.coordinator.config = replace(self.coordinator.config, **config)
        self.tasks = []
        self.coordinator.reload()

    # What is written down

    def _ask(self, who: str, method: Any, request: Any, partitions: list[str] | None = None) -> None:
        self._take(method(self.coordinator.now_ms, (who, partitions or []), request))

    def _take(self, effects: Effects[GroupRecord]) -> None:
        self.lines.extend(f"record: {self._stored(record)}" for record in effects.records)
        for task in effects.tasks:
            self.tasks.append(task)
            what = self._partitions(task.partitions)
            self.lines.append(f"task: initialize {task.group_id} {what} state-epoch={task.state_epoch}")
        self.coordinator.take(effects)

    def _reply(self, token: tuple[str, list[str]], response: Any) -> None:
        who, partitions = token
        if isinstance(response, ApiError):
            self.lines.append(f"{who}: {response.code.name}")
            return
        if isinstance(response, Begun):
            what = self._partitions(response.partitions) or "nothing"
            self.lines.append(f"{who}: {what} state-epoch={response.state_epoch}")
            return
        if not isinstance(response, m.ShareHeartbeatResponse):
            self.lines.append(f"{who}: {classic_said(response, partitions)}")
            return
        if response.error_code is not ErrorCode.NONE:
            self.lines.append(f"{who}: {response.error_code.name}: {response.error_message}")
            return
        self.clients[who].epoch = response.member_epoch
        line = f"{who}: epoch={response.member_epoch}"
        if response.member_epoch >= 0:
            line += f" next={response.heartbeat_interval_ms}"
        if response.assignment is not None:
            line += f" assigned={self._partitions(response.assignment)}"
        self.lines.append(line)

    def _stored(self, record: GroupRecord) -> str:
        match record:
            case ShareMemberStored():
                rack = f" rack={record.rack_id}" if record.rack_id else ""
                return f"member {record.group_id} {record.member_id} topics={','.join(record.subscribed_topics)}{rack}"
            case ShareGroupStored():
                return f"group {record.group_id} epoch={record.epoch}"
            case ShareTargetStored():
                return f"target {record.group_id} epoch={record.assignment_epoch}"
            case ShareMemberTargetStored():
                return f"target {record.group_id} {record.member_id}={self._partitions(record.partitions)}"
            case ShareMemberCurrentStored():
                epochs = f"epoch={record.member_epoch} previous={record.previous_member_epoch}"
                return f"current {record.group_id} {record.member_id}={self._partitions(record.partitions)} {epochs}"
            case ShareStatesStored():
                deleting = ",".join(name for _, name in record.deleting)
                states = f"initializing={_states(record.initializing)} initialized={_states(record.initialized)}"
                return f"states {record.group_id} {states}" + (f" deleting={deleting}" if deleting else "")
            case ShareRecordRemoved():
                return f"{record.key.name} {record.group_id} {record.member_id} removed".replace("  ", " ")
        return classic_stored(record)

    def _partitions(self, partitions: TopicPartitions) -> str:
        return _written(partitions, self.topics)


def _written(partitions: TopicPartitions, topics: NamedTopics) -> str:
    names = {topic_id: topics.name_of(topic_id) or topic_id.decode().strip() for topic_id in partitions}
    return ",".join(f"{names[each]}-{index}" for each, indexes in partitions.items() for index in indexes)


def _group(group: m.DescribedShareGroup, topics: NamedTopics) -> str:
    members = " ".join(
        f"{each.member_id}={_written({topic_id: indexes for topic_id, _, indexes in each.assignment}, topics)}"
        for each in group.members
    )
    return f"{group.group_id}: {group.state} epoch={group.group_epoch}:{group.assignment_epoch} {members}".rstrip()


def _states(states: tuple[TopicState, ...]) -> str:
    return ",".join(f"{each.name}-{index}" for each in states for index in each.partitions) or "none"


def _partition(text: str) -> TopicPartition:
    topic, partition = text.rsplit("-", 1)
    return TopicPartition(topic, int(partition))
