"""The next state of one partition: its leader, in-sync replicas and replicas, given which brokers are alive.

Pure functions on a partition's state; `elections` and its siblings decide for whole clusters. The functions leave the
epochs alone: `PartitionChanges` sets them from what differs when a decision is done, and gathers the records.

Invariants of every state that comes out of here: the in-sync replicas are replicas, and never none; the leader is one
of them, or NO_LEADER. If none of them is alive they all stay: each has what was acknowledged, and the first to come
back may lead.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from flowstone.cluster.decisions.configs import topic_defaults
from flowstone.cluster.image.cluster_image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.image.records import PartitionChanged
from flowstone.config import TOPIC_SETTINGS

_UNCLEAN = TOPIC_SETTINGS["unclean.leader.election.enable"]
_MIN_INSYNC = TOPIC_SETTINGS["min.insync.replicas"]


def alive_brokers(image: ClusterImage) -> set[int]:
    return {node_id for node_id, broker in image.brokers.items() if not broker.is_fenced}


def in_sync_with(image: ClusterImage, node_id: int) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for partition, state in enumerate(topic.partitions):
            if node_id in state.isr:
                yield topic, partition, state


def settle(
    state: PartitionImage, alive: Container[int], *, min_insync: int | None = None, unclean: bool = False
) -> PartitionImage:
    """Return the state after deaths and returns: dead replicas out of sync, a finished reassignment ended, a leader
    elected.

    `min_insync` is the topic's min.insync.replicas. A decision that does not know it (None) ends no reassignment: the
    leader's next change of the ISR does, or the controller.

    The leader stays if it can; else the first replica that is in sync leads. `unclean` lets any replica lead if none of
    those in sync is alive, one that has just come last: it alone is in sync then, and what it lacks is lost.
    """
    isr = tuple(node_id for node_id in state.isr if node_id in alive)
    if not isr and unclean:
        candidates = sorted(state.replicas, key=lambda node_id: node_id in state.adding)
        isr = tuple(node_id for node_id in candidates if node_id in alive)[:1]
    if not isr:
        return state if state.leader == NO_LEADER else replace(state, leader=NO_LEADER)
    state = replace(state, isr=isr)
    if min_insync is not None:
        state = _completed(state, min_insync)
    if state.leader in state.isr:
        return state
    return replace(state, leader=next(node_id for node_id in state.replicas if node_id in state.isr))


def is_settled(state: PartitionImage, alive: set[int]) -> bool:
    """Return whether `settle` has certainly nothing to do: a quick check, because there are many partitions."""
    return state.leader in alive and not state.adding and not state.removing and alive.issuperset(state.isr)


def withdraw(state: PartitionImage, node_id: int) -> PartitionImage:
    """Return the state with the replica not in sync, unless it is the only one; `settle` elects the next leader."""
    isr = tuple(each for each in state.isr if each != node_id)
    return replace(state, isr=isr) if isr else state


def _completed(state: PartitionImage, min_insync: int) -> PartitionImage:
    """Return the state without the removed replicas if the reassignment can end; otherwise the state as it is.

    A reassignment ends once all replicas that come are in sync, and the target has at least as many in sync as
    min.insync.replicas asks for and as the partition has without those that come; or all of the target.
    """
    if not state.adding and not state.removing:
        return state
    isr = tuple(node_id for node_id in state.isr if node_id not in state.removing)
    replicas = tuple(node_id for node_id in state.replicas if node_id not in state.removing)
    before = sum(node_id not in state.adding for node_id in state.isr)
    least = min(len(replicas), max(min_insync, before))
    if not isr or len(isr) < least or not set(state.adding) <= set(isr):
        return state
    return replace(state, replicas=replicas, isr=isr, adding=(), removing=())


class TopicRules:
    """The topic settings that affect leaders and in-sync replicas, as one broker sees them."""

    def __init__(self, image: ClusterImage, started_with: Mapping[str, str], node_id: int) -> None:
        defaults = topic_defaults(image, started_with, node_id)
        self._unclean = defaults.get(_UNCLEAN.name, _UNCLEAN.format(_UNCLEAN.default))
        self._min_insync = defaults.get(_MIN_INSYNC.name, _MIN_INSYNC.format(_MIN_INSYNC.default))

    def allows_unclean(self, topic: TopicImage) -> bool:
        """Return whether a replica that may lack records may lead the topic's partitions."""
        return bool(_UNCLEAN.parse(topic.configs.get(_UNCLEAN.name, self._unclean)))

    def min_insync(self, topic: TopicImage) -> int:
        least = _MIN_INSYNC.parse(topic.configs.get(_MIN_INSYNC.name, self._min_insync))
        assert isinstance(least, int)
        return least


class PartitionChanges:
    """The partitions that a decision changes: their newest states, and a record for every change."""

    def __init__(self) -> None:
        self.records: list[PartitionChanged] = []
        self._newest: dict[tuple[bytes, int], PartitionImage] = {}

    def state(self, topic: TopicImage, partition: int) -> PartitionImage:
        return self._newest.get((topic.topic_id, partition)) or topic.partitions[partition]

    def put(
        self, topic: TopicImage, partition: int, wanted: PartitionImage, *, leads_anew: bool = False
    ) -> PartitionImage:
        """Change the partition's state, and raise the epochs that such a change raises; return the new state.

        The leader's epoch grows with every other leader, with the same one in another life (`leads_anew`: its log may
        be shorter than it was), and when a replica is dropped: what is still under way from that replica must not count
        should it ever be one again.
        """
        before = self.state(topic, partition)
        is_dropped = not set(before.replicas) <= set(wanted.replicas)
        leads_anew = leads_anew or is_dropped or wanted.leader != before.leader
        if wanted == before and not leads_anew:
            return before
        assert wanted.isr
        assert set(wanted.isr) <= set(wanted.replicas)
        assert wanted.leader == NO_LEADER or wanted.leader in wanted.isr
        state = replace(
            wanted, leader_epoch=before.leader_epoch + leads_anew, partition_epoch=before.partition_epoch + 1
        )
        self._newest[topic.topic_id, partition] = state
        self.records.append(PartitionChanged(topic.topic_id, partition, state))
        return state
