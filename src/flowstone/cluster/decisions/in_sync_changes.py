"""Decides a leader's proposal of an ISR, and what follows from it: Kafka's AlterPartition.

Pure. The leader proposed on what it knew of the partition; both epochs must still be the newest, or it has to propose
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from flowstone.cluster.decisions.partition_states import PartitionChanges, alive_brokers, settle
from flowstone.cluster.image.cluster_image import ClusterImage, PartitionImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.errors import ErrorCode


class InSyncResult(NamedTuple):
    """The partition after the change; with an error, the partition without it.

    NEW_LEADER_ELECTED is the exception: the change was made, and ended a reassignment and this leadership.
    """

    error: ErrorCode
    state: PartitionImage | None


def change_in_sync(
    image: ClusterImage,
    topic_id: bytes,
    partition: int,
    *,
    leader: int,
    leader_epoch: int,
    partition_epoch: int,
    isr: Sequence[tuple[int, int]],
    min_insync: int,
) -> tuple[list[MetadataRecord], InSyncResult]:
    """Decide a proposed ISR, with the broker epoch under which each replica fetched (the leader's own for itself)."""
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return [], InSyncResult(ErrorCode.UNKNOWN_TOPIC_ID, None)
    if not 0 <= partition < len(topic.partitions):
        return [], InSyncResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    state = topic.partitions[partition]
    error = _stale(state, leader, leader_epoch, partition_epoch) or _refused(image, state, isr)
    if error is not None:
        return [], InSyncResult(error, state)
    members = {node_id for node_id, _epoch in isr}
    proposed = replace(state, isr=tuple(node_id for node_id in state.replicas if node_id in members))
    if set(proposed.isr) == set(state.isr):
        return [], InSyncResult(ErrorCode.NONE, state)
    changes = PartitionChanges()
    state = changes.put(topic, partition, settle(proposed, alive_brokers(image), min_insync=min_insync))
    error = ErrorCode.NONE if state.leader == leader else ErrorCode.NEW_LEADER_ELECTED
    return [*changes.records], InSyncResult(error, state)


def _stale(state: PartitionImage, leader: int, leader_epoch: int, partition_epoch: int) -> ErrorCode | None:
    if (state.leader, state.leader_epoch) != (leader, leader_epoch):
        return ErrorCode.FENCED_LEADER_EPOCH
    return None if state.partition_epoch == partition_epoch else ErrorCode.INVALID_UPDATE_VERSION


def _refused(image: ClusterImage, state: PartitionImage, isr: Sequence[tuple[int, int]]) -> ErrorCode | None:
    members = [node_id for node_id, _epoch in isr]
    is_sound = state.leader in members and set(members) <= set(state.replicas) and len(set(members)) == len(members)
    if not is_sound:
        return ErrorCode.INVALID_REQUEST
    for node_id, epoch in isr:
        if node_id in state.isr:
            continue  # any broker epoch: its registration removed it from the ISR if it had to leave
        broker = image.brokers[node_id]
        if broker.is_fenced or broker.epoch != epoch:
            return ErrorCode.INELIGIBLE_REPLICA
    return None
