"""Moves partitions to other brokers: Kafka's AlterPartitionReassignments and ListPartitionReassignments as decisions.

Pure. A partition on the move has all its replicas, old and new: `replicas` is the target, in its order, followed by
those that go (`removing`); of the target some are new (`adding`). Once all of those are in sync the others are dropped,
by whichever decision first finds it so (`partition_states.settle`), unless the target would have fewer replicas in sync
than the partition had before, or than min.insync.replicas asks for. Partitions move only at an operator's request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from flowstone.cluster.decisions.partition_plans import check_assignment
from flowstone.cluster.decisions.partition_states import PartitionChanges, TopicRules, alive_brokers, settle
from flowstone.cluster.image.cluster_image import ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
NO_BROKER = -1


class WantedReplicas(NamedTuple):
    partition: TopicPartition
    # None cancels the reassignment under way.
    replicas: Sequence[int] | None


class ReassignmentResult(NamedTuple):
    partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_reassignments(
    image: ClusterImage,
    wanted: Sequence[WantedReplicas],
    *,
    may_change_factor: bool = True,
    topic_defaults: Mapping[str, str] = _NO_SETTINGS,
    me: int = NO_BROKER,
) -> tuple[list[MetadataRecord], list[ReassignmentResult]]:
    """Return the records to append, and one result per wish, in order.

    `topic_defaults` are the topic settings that the deciding broker, `me`, was started with.
    """
    changes, alive, rules = PartitionChanges(), alive_brokers(image), TopicRules(image, topic_defaults, me)
    results = []
    for each in wanted:
        try:
            topic = _find_topic(image, each.partition)
            state = changes.state(topic, each.partition.partition)
            if each.replicas is None:
                after = _reverted(each.partition, state)
            else:
                check_assignment(image, each.replicas, None)
                if not may_change_factor:
                    _check_factor(state, len(each.replicas))
                after = _towards(state, tuple(each.replicas), rules.min_insync(topic))
        except ApiError as error:
            results.append(ReassignmentResult(each.partition, error.code, error.message))
        else:
            changes.put(topic, each.partition.partition, settle(after, alive, min_insync=rules.min_insync(topic)))
            results.append(ReassignmentResult(each.partition))
    return [*changes.records], results


def list_reassignments(
    image: ClusterImage, partitions: Iterable[TopicPartition] | None
) -> list[tuple[TopicPartition, PartitionImage]]:
    """Return the partitions that are being moved, among the given ones or (None) all; unknown ones are skipped, as in
    Kafka.
    """
    if partitions is None:
        return [
            (TopicPartition(topic.name, number), state)
            for topic in image.topics.values()
            for number, state in enumerate(topic.partitions)
            if _is_moving(state)
        ]
    found = ((each, image.partition(each)) for each in partitions)
    return [(each, state) for each, state in found if state is not None and _is_moving(state)]


def _is_moving(state: PartitionImage) -> bool:
    return bool(state.adding or state.removing)


def _find_topic(image: ClusterImage, partition: TopicPartition) -> TopicImage:
    topic = image.topics.get(partition.topic)
    if topic is None:
        message = f"Unable to find a topic named {partition.topic}."
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if not 0 <= partition.partition < len(topic.partitions):
        message = f"Unable to find partition {partition.topic}:{partition.partition}."
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return topic


def _origin(state: PartitionImage) -> tuple[int, ...]:
    """Return the replicas without those being added: the state to which a cancelled move returns."""
    return tuple(node_id for node_id in state.replicas if node_id not in state.adding)


def _check_factor(state: PartitionImage, wanted: int) -> None:
    present = len(_origin(state))
    if wanted != present:
        message = f"The replication factor is changed from {present} to {wanted}"
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def _reverted(partition: TopicPartition, state: PartitionImage) -> PartitionImage:
    if not _is_moving(state):
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    replicas = _origin(state)
    isr = tuple(node_id for node_id in state.isr if node_id in replicas)
    if not isr:
        message = (
            f"Unable to revert partition assignment for {partition.topic}:{partition.partition} because it would "
            "require an unclean leader election."
        )
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return replace(state, replicas=replicas, isr=isr, adding=(), removing=())


def _towards(state: PartitionImage, target: tuple[int, ...], min_insync: int) -> PartitionImage:
    """Return the partition with a reassignment to these replicas, already completed if possible."""
    # A replica added by an earlier request, and not wanted by this one, is removed at once unless too few others are in
    # sync.
    given_up = set(state.adding) - set(target)
    if len(set(state.isr) - given_up) < min(max(min_insync, 1), len(state.isr)):
        given_up = set()
    removing = tuple(node_id for node_id in state.replicas if node_id not in target and node_id not in given_up)
    origin = _origin(state)
    return replace(
        state,
        replicas=target + removing,
        isr=tuple(node_id for node_id in state.isr if node_id not in given_up),
        adding=tuple(node_id for node_id in target if node_id not in origin),
        removing=removing,
    )
