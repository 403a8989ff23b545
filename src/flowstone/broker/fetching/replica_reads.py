"""A leader's answers to a follower's fetch: records up to the log's end, or the offset at which the two logs diverge.

Only a registered broker of the cluster is a follower: the id and the epoch in the request must be those of its
registration. Whether it has a replica of the partition is checked by the partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flowstone.broker.clustering.log_starts import LogStarts
from flowstone.broker.fetching.fetch_partitions import FetchPartition, ReplicaFetchPartition
from flowstone.errors import ApiError, ErrorCode
from flowstone.replication.partition import Partition
from flowstone.replication.state import DivergingEpoch, ReplicaFetch
from flowstone.replication.throttle import Throttle
from flowstone.wire.messages import (
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponsePartition,
    FetchResponseTopic,
)

if TYPE_CHECKING:
    from flowstone.broker.requests.context import Services

NO_REPLICA = -1


class ReplicaReader:
    """Reads partitions for the fetches of one follower."""

    def __init__(
        self,
        replica_id: int,
        replica_epoch: int,
        throttle: Throttle,
        monotonic: Callable[[], float],
        log_starts: LogStarts,
    ) -> None:
        self._replica_id, self._replica_epoch = replica_id, replica_epoch
        self._throttle, self._monotonic, self._log_starts = throttle, monotonic, log_starts

    def read(
        self, partition: Partition, wanted: FetchPartition, max_bytes: int, *, at_least_one: bool
    ) -> FetchResponsePartition:
        """Return the answer for one partition.

        Raises NotCached if the bytes must be read by a worker, and ApiError with the error code for the partition.
        """
        if self._replica_id not in partition.isr and self._throttle.free_at_s > self._monotonic():
            max_bytes, at_least_one = 0, False
        assert isinstance(wanted, ReplicaFetchPartition), "a session is a follower's or a consumer's"
        fetch = ReplicaFetch(
            self._replica_id,
            self._replica_epoch,
            wanted.fetch_offset,
            wanted.last_fetched_epoch,
            wanted.log_start_offset,
            is_repeated=wanted.is_position_told,
        )
        result = FetchResponsePartition(partition_index=wanted.index, records=b"")
        try:
            leader = partition.leader_role(wanted.current_leader_epoch)
            found = leader.read(fetch, max_bytes, at_least_one=at_least_one)
            if not wanted.is_position_told:
                wanted.is_position_told = True
                self._log_starts.told(partition)
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            result.error_code = error.code  # the follower needs the log start to start over
        else:
            if isinstance(found, DivergingEpoch):
                result.diverging_epoch = FetchResponseEpochEndOffset(epoch=found.epoch, end_offset=found.end_offset)
            elif found is not None:
                result.records = found
                if self._replica_id not in partition.isr:
                    self._throttle.spend(len(found), self._monotonic())
        result.high_watermark = partition.high_watermark.offset
        result.last_stable_offset = partition.last_stable_offset
        result.log_start_offset = partition.log.log_start_offset
        return result


def is_urgent(wanted: FetchPartition, result: FetchResponsePartition) -> bool:
    """Return whether a partition's answer is sent at once, even without new records.

    That is so where the leader has deleted records that the follower still has: a DeleteRecords request may wait for
    it.
    """
    if result.error_code != ErrorCode.NONE or result.diverging_epoch is not None:
        return True
    assert isinstance(wanted, ReplicaFetchPartition)
    return 0 <= wanted.log_start_offset < result.log_start_offset != wanted.told_log_start_offset


def replica_reader(services: Services, request: FetchRequest) -> ReplicaReader | None:
    """Return the reader for a follower's fetch, or None if the requester is not a registered broker.

    Requests before version 15 carry no epoch, which is then not checked.
    """
    image, state = services.metadata.image, request.replica_state
    broker = None if state is None else image.brokers.get(state.replica_id)
    if state is None or broker is None or broker.epoch != state.replica_epoch:
        return None
    throttle = services.fetch_sessions.catch_up_rate.throttle(image, services.config)
    return ReplicaReader(state.replica_id, state.replica_epoch, throttle, services.clock.monotonic, services.log_starts)


def refuse_replica(request: FetchRequest, code: ErrorCode) -> FetchResponse:
    """Return the response to a requester that is not registered here, or registered with another epoch, or no broker.

    The requester may also have read more of the metadata log than this broker.
    """
    if not any(topic.partitions for topic in request.topics):
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)  # the session is of a former incarnation
    responses = [
        FetchResponseTopic(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[failed_partition(wanted.partition, code) for wanted in topic.partitions],
        )
        for topic in request.topics
    ]
    return FetchResponse(responses=responses)


def failed_partition(index: int, code: ErrorCode) -> FetchResponsePartition:
    return FetchResponsePartition(partition_index=index, error_code=code, high_watermark=-1, records=b"")
