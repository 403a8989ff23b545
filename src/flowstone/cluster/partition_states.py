"""What becomes of one partition: its next leader, in-sync replicas and replicas, given who is alive.

Pure functions on a partition's state; whole clusters are `elections`' and its siblings'. They leave the epochs alone:
`PartitionChanges` sets them from what differs when a decision is done, and gathers the records.

Invariants of every state that comes out of here: the in-sync replicas are replicas, and never none; the leader is one
of them, or NO_LEADER. Where none of them is alive they all stay: each has what was acknowledged, and whoever comes
back first may lead.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from flowstone.cluster.configs import topic_defaults
from flowstone.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.records import PartitionChanged
from flowstone.config import TOPIC_SETTINGS

_UNCLEAN = TOPIC_SETTINGS["unclean.leader.election.enable"]


def alive_brokers(image: ClusterImage) -> set[int]:
    return {node_id for node_id, broker in image.brokers.items() if not broker.is_fenced}


def in_sync_with(image: ClusterImage, node_id: int) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for partition, state in enumerate(topic.partitions):
            if node_id in state.isr:
                yield topic, partition, state


def settle(state: PartitionImage, alive: Container[int], *, unclean: bool = False) -> PartitionImage:
    """The state in step with who is alive: dead replicas not in sync, a reassignment that can end ended, a leader.

    The leader stays if it can; else the first replica that is in sync leads. `unclean` lets any replica lead if none of
    those in sync is alive, one that has just come last: it alone is in sync then, and what it lacks is lost.
    """
    isr = tuple(node_id for node_id in state.isr if node_id in alive)
    if not isr and unclean:
        candidates = sorted(state.replicas, key=lambda node_id: node_id in state.adding)
        isr = tuple(node_id for node_id in candidates if node_id in alive)[:1]
    if not isr:
        return state if state.leader == NO_LEADER else replace(state, leader=NO_LEADER)
    state = _completed(replace(state, isr=isr))
    if state.leader in state.isr:
        return state
    return replace(state, leader=next(node_id for node_id in state.replicas if node_id in state.isr))


def is_settled(state: PartitionImage, alive: set[int]) -> bool:
    """Whether `settle` certainly has nothing to do: a quick look, for there are many partitions."""
    return state.leader in alive and not state.adding and not state.removing and alive.issuperset(state.isr)


def withdraw(state: PartitionImage, node_id: int) -> PartitionImage:
    """The state with the replica not in sync, unless no other is; who leads instead is for `settle`."""
    isr = tuple(each for each in state.isr if each != node_id)
    return replace(state, isr=isr) if isr else state


def _completed(state: PartitionImage) -> PartitionImage:
    """A reassignment ends once all that come are in sync: those that go are dropped."""
    if not state.adding and not state.removing:
        return state
    isr = tuple(node_id for node_id in state.isr if node_id not in state.removing)
    if not isr or not set(state.adding) <= set(isr):
        return state
    replicas = tuple(node_id for node_id in state.replicas if node_id not in state.removing)
    return replace(state, replicas=replicas, isr=isr, adding=(), removing=())


class UncleanElections:
    """Which topics let a replica lead that may lack records, as one broker sees their settings."""

    def __init__(self, image: ClusterImage, started_with: Mapping[str, str], node_id: int) -> None:
        defaults = topic_defaults(image, started_with, node_id)
        self._default = defaults.get(_UNCLEAN.name, _UNCLEAN.format(_UNCLEAN.default))

    def allowed(self, topic: TopicImage) -> bool:
        return bool(_UNCLEAN.parse(topic.configs.get(_UNCLEAN.name, self._default)))


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
        """The partition shall be like this; its epochs follow from what changes.

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
