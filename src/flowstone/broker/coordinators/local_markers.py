"""Writes end markers of transactions to partitions that this broker leads, for its own and for other coordinators.

The group coordinator writes the markers of partitions of `__consumer_offsets`, because a marker also makes the
transaction's offsets visible in its state.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from flowstone.cluster.decisions.topic_names import CONSUMER_OFFSETS, is_internal
from flowstone.cluster.metadata import Metadata
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock
from flowstone.promise import Promise
from flowstone.replication.partition import ACKS_ALL
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition
from flowstone.wire.end_markers import end_marker


class Marker(NamedTuple):
    """The content of a transaction's end marker, the same in all of its partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int


class WritesGroupMarkers(Protocol):
    """The part of the group coordinator that ends transactions in its partitions."""

    def write_marker(
        self,
        index: int,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        is_commit: bool,
        transaction_version: int,
    ) -> Promise[None]: ...


class LocalMarkers:
    def __init__(self, partitions: Partitions, metadata: Metadata, clock: Clock, groups: WritesGroupMarkers) -> None:
        self._partitions, self._metadata, self._clock, self._groups = partitions, metadata, clock, groups

    def write(self, where: TopicPartition, marker: Marker) -> Promise[None]:
        """Append a marker. The promise is resolved once it is committed, and raises an ApiError if that fails."""
        try:
            return self._append(where, marker)
        except ApiError as error:
            refused: Promise[None] = Promise()
            refused.set_exception(error)
            return refused

    def _append(self, where: TopicPartition, marker: Marker) -> Promise[None]:
        partition = self._partitions.find(where)
        if partition is None or not partition.is_leader:
            is_known = self._metadata.image.partition(where) is not None
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if where.topic == CONSUMER_OFFSETS:
            return self._groups.write_marker(where.partition, *marker)
        if is_internal(where.topic):
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{where.topic} takes no part in transactions")
        batch = end_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.is_commit,
            self._clock.time_ms(),
        )
        appended = partition.append(batch, ACKS_ALL, is_own=True, transaction_version=marker.transaction_version)
        written: Promise[None] = Promise()

        def committed(code: ErrorCode) -> None:
            if written.done():
                return
            if code is ErrorCode.NONE:
                written.set_result(None)
            else:
                written.set_exception(ApiError(code))

        partition.when_committed(appended.last_offset + 1, committed)
        return written
