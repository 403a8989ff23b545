"""Leader elections: by the controller when brokers die or return, for balance, or at an operator's request.

Pure functions from an image to the records to append.

The controller is the senior member. Being the controller gives no authority by itself: a decision is valid if its
append comes next in the log. The controller's election is a record so that clients can be told of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from flowstone.cluster.decisions.partition_states import PartitionChanges, TopicRules, alive_brokers, is_settled, settle
from flowstone.cluster.decisions.withdrawals import NO_INCARNATION
from flowstone.cluster.image.cluster_image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.image.records import BrokerFenced, BrokerRegistered, ControllerElected, MetadataRecord
from flowstone.cluster.logs.consensus import Member
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
NO_BROKER = -1


class ElectionType(IntEnum):
    """The types of elections, with ElectLeaders' numbers."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectionResult(NamedTuple):
    partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def reconcile(
    image: ClusterImage, members: Sequence[Member], me: int, topic_defaults: Mapping[str, str] = _NO_SETTINGS
) -> list[MetadataRecord]:
    """Return what the senior member must append so that the image agrees with `members`; nothing if `me` is not senior.

    A member may be fenced, by a broker that had not learned of its membership: it is made live again.

    `topic_defaults` are the topic settings that this broker was started with. A controller that comes back in another
    life is not elected again: its registration stands between what its former life saw and the log's end.
    """
    if not members or members[0].node_id != me:
        return []
    records: list[MetadataRecord] = []
    if image.controller_id != me:
        records.append(ControllerElected(me, image.controller_epoch + 1))
    present, alive = set(members), set[int]()
    for node_id, broker in sorted(image.brokers.items()):
        is_present = broker.incarnation != NO_INCARNATION and Member(node_id, broker.incarnation) in present
        if is_present:
            alive.add(node_id)
            if broker.is_fenced:
                records.append(BrokerRegistered(replace(broker, is_fenced=False)))
        elif not broker.is_fenced:
            records.append(BrokerFenced(node_id, broker.epoch))
    changes, rules = PartitionChanges(), TopicRules(image, topic_defaults, me)
    for topic in image.topics.values():
        for partition, state in enumerate(topic.partitions):
            if not is_settled(state, alive):
                is_lost = alive.isdisjoint(state.isr)
                unclean = is_lost and rules.allows_unclean(topic)
                wanted = settle(state, alive, min_insync=rules.min_insync(topic), unclean=unclean)
                changes.put(topic, partition, wanted)
    return records + changes.records


def elect_leaders(
    image: ClusterImage,
    election_type: ElectionType,
    partitions: Sequence[TopicPartition] | None,
    topic_defaults: Mapping[str, str] = _NO_SETTINGS,
    me: int = NO_BROKER,
) -> tuple[list[MetadataRecord], list[ElectionResult]]:
    """Return the records, and one result per partition, in order. None means all, with results only where one was
    needed.

    `topic_defaults` are the topic settings that the deciding broker, `me`, was started with.
    """
    changes, alive, rules = PartitionChanges(), alive_brokers(image), TopicRules(image, topic_defaults, me)
    results = []
    for each in _every_partition(image) if partitions is None else partitions:
        try:
            _elect(image, changes, alive, election_type, each, rules)
        except ApiError as error:
            if partitions is not None or error.code != ErrorCode.ELECTION_NOT_NEEDED:
                results.append(ElectionResult(each, error.code, error.message))
        else:
            results.append(ElectionResult(each))
    return [*changes.records], results


def balance_leaders(image: ClusterImage, imbalance_percentage: int) -> tuple[list[MetadataRecord], int]:
    """Return the records that give leadership back to brokers that lack more than this share of their preferred
    partitions.

    Also returns how many partitions get another leader. Partitions that move are left alone: their preferred replica
    may be one that has just come.
    """
    alive = alive_brokers(image)
    preferred: Counter[int] = Counter()
    lacking: dict[int, list[tuple[TopicImage, int, PartitionImage]]] = defaultdict(list)
    for topic in image.topics.values():
        for partition, state in enumerate(topic.partitions):
            first = state.replicas[0]
            preferred[first] += 1
            if state.leader != first:
                lacking[first].append((topic, partition, state))
    changes = PartitionChanges()
    for node_id, away in sorted(lacking.items()):
        if node_id not in alive or 100 * len(away) <= imbalance_percentage * preferred[node_id]:
            continue
        for topic, partition, state in away:
            if node_id in state.isr and not state.adding and not state.removing:
                changes.put(topic, partition, replace(state, leader=node_id))
    return [*changes.records], len(changes.records)


def _every_partition(image: ClusterImage) -> Iterator[TopicPartition]:
    for topic in image.topics.values():
        for partition in range(len(topic.partitions)):
            yield TopicPartition(topic.name, partition)


def _elect(
    image: ClusterImage,
    changes: PartitionChanges,
    alive: set[int],
    election_type: ElectionType,
    each: TopicPartition,
    rules: TopicRules,
) -> None:
    topic = image.topics.get(each.topic)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {each.topic}")
    if not 0 <= each.partition < len(topic.partitions):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {each}")
    state = changes.state(topic, each.partition)
    if election_type is ElectionType.PREFERRED:
        wanted = _preferred(state, alive)
    elif state.leader != NO_LEADER:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    else:
        wanted = settle(state, alive, min_insync=rules.min_insync(topic), unclean=True)
        if wanted.leader == NO_LEADER:
            message = "Eligible topic partition leaders are not available."
            raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
    changes.put(topic, each.partition, wanted)


def _preferred(state: PartitionImage, alive: set[int]) -> PartitionImage:
    preferred = state.replicas[0]
    if state.leader == preferred:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    if preferred not in state.isr or preferred not in alive:
        raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    return settle(replace(state, leader=preferred), alive)
