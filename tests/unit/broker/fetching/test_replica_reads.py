"""What a follower hears of at once, and what it is told with the next records."""

from __future__ import annotations

from flowstone.broker.fetching.fetch_partitions import ReplicaFetchPartition
from flowstone.broker.fetching.replica_reads import is_urgent
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponseEpochEndOffset,
    FetchResponsePartition,
)


def follower(log_start_offset: int, told_log_start_offset: int = -1) -> ReplicaFetchPartition:
    """A follower's log starts there, and its leader last told that its own starts elsewhere."""
    wanted = FetchRequestPartition(partition=0, log_start_offset=log_start_offset)
    partition = ReplicaFetchPartition(FetchRequestTopic(topic="t"), wanted)
    partition.told_log_start_offset = told_log_start_offset
    return partition


def test_a_follower_that_finds_nothing_new_waits() -> None:
    assert not is_urgent(follower(5), FetchResponsePartition(log_start_offset=5))


def test_a_follower_hears_of_an_error_at_once() -> None:
    assert is_urgent(follower(5), FetchResponsePartition(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=5))


def test_a_follower_hears_at_once_that_its_log_diverges() -> None:
    diverging = FetchResponseEpochEndOffset(epoch=3, end_offset=4)
    assert is_urgent(follower(5), FetchResponsePartition(diverging_epoch=diverging, log_start_offset=5))


def test_a_follower_hears_at_once_and_once_that_its_leader_has_deleted_records() -> None:
    result = FetchResponsePartition(log_start_offset=6)
    assert is_urgent(follower(5), result)
    assert is_urgent(follower(0), result)
    assert not is_urgent(follower(5, told_log_start_offset=6), result)
    assert not is_urgent(follower(6), result)


def test_a_follower_that_does_not_say_where_its_log_starts_is_not_told_where_to_start() -> None:
    assert not is_urgent(follower(-1), FetchResponsePartition(log_start_offset=6))
