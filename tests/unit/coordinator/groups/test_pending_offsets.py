"""Offsets of open transactions, in a group shard that replays them: they count once their marker says commit."""

from __future__ import annotations

import pytest

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.messages import FetchOffsetsRequest
from flowstone.coordinator.groups.pending_offsets import PendingOffsets
from flowstone.coordinator.groups.records import GroupStored, OffsetCommitted, OffsetRemoved
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.memory_budget import MemoryBudget
from flowstone.wire.end_markers import EndMarker
from tests.unit.coordinator.groups.harness import ManyTopics, default_settings

FIRST, SECOND = TransactionalProducer(1, 0), TransactionalProducer(2, 0)
COMMIT, ABORT = EndMarker(True, 0), EndMarker(False, 0)


def offset(at: int, partition: int = 0) -> OffsetCommitted:
    return OffsetCommitted("g", "t", partition, at)


@pytest.fixture
def shard() -> GroupShard:
    return GroupShard(GroupConfig(), lambda prefix: prefix, MemoryBudget(1 << 20), ManyTopics(), default_settings)


def committed(shard: GroupShard) -> dict[int, int]:
    """The group's offsets by partition."""
    ((_token, response),) = shard.fetch_offsets(0, None, FetchOffsetsRequest("g", None)).replies
    return {place.partition: found.offset for place, found in response.offsets.items()}


def test_offsets_of_an_open_transaction_do_not_count(shard: GroupShard) -> None:
    shard.replay([offset(5)])
    shard.replay([offset(9)], FIRST)
    assert committed(shard) == {0: 5}


def test_offsets_of_a_committed_transaction_count(shard: GroupShard) -> None:
    shard.replay([offset(9), offset(4, partition=1)], FIRST)
    shard.replay([offset(10)], FIRST)
    shard.replay_marker(FIRST, COMMIT)
    assert committed(shard) == {0: 10, 1: 4}


def test_offsets_of_an_aborted_transaction_are_forgotten(shard: GroupShard) -> None:
    shard.replay([offset(9)], FIRST)
    shard.replay_marker(FIRST, ABORT)
    shard.replay_marker(FIRST, COMMIT)
    assert committed(shard) == {}


def test_a_marker_ends_the_transaction_of_its_own_producer_only(shard: GroupShard) -> None:
    shard.replay([offset(9)], FIRST)
    shard.replay([offset(4, partition=1)], SECOND)
    shard.replay_marker(SECOND, COMMIT)
    assert committed(shard) == {1: 4}


def test_a_plain_commit_that_came_later_wins(shard: GroupShard) -> None:
    shard.replay([offset(9), offset(3, partition=1)], FIRST)
    shard.replay([offset(5)])
    shard.replay_marker(FIRST, COMMIT)
    assert committed(shard) == {0: 5, 1: 3}


def test_an_offset_that_was_removed_later_does_not_come_back(shard: GroupShard) -> None:
    shard.replay([offset(9)], FIRST)
    shard.replay([OffsetRemoved("g", "t", 0)])
    shard.replay_marker(FIRST, COMMIT)
    assert committed(shard) == {}


def test_of_two_transactions_the_offset_that_was_written_later_wins(shard: GroupShard) -> None:
    shard.replay([offset(9)], FIRST)
    shard.replay([offset(5)], SECOND)
    shard.replay_marker(SECOND, COMMIT)
    shard.replay_marker(FIRST, COMMIT)
    assert committed(shard) == {0: 5}


def test_of_two_transactions_the_one_that_wrote_later_may_be_committed_last(shard: GroupShard) -> None:
    shard.replay([offset(9)], FIRST)
    shard.replay([offset(5)], SECOND)
    shard.replay_marker(FIRST, COMMIT)
    assert committed(shard) == {0: 9}
    shard.replay_marker(SECOND, COMMIT)
    assert committed(shard) == {0: 5}


def test_an_aborted_transaction_leaves_the_offsets_of_others_that_wrote_before(shard: GroupShard) -> None:
    shard.replay([offset(9)], FIRST)
    shard.replay([offset(5)], SECOND)
    shard.replay_marker(SECOND, ABORT)
    shard.replay_marker(FIRST, COMMIT)
    assert committed(shard) == {0: 9}


def test_what_else_a_transactional_batch_holds_is_applied_at_once(shard: GroupShard) -> None:
    shard.replay([offset(5)])
    shard.replay([GroupStored("h", "", 1, None, None, 0, ()), OffsetRemoved("g", "t", 0)], FIRST)
    assert committed(shard) == {}


def test_the_newest_offset_of_each_partition_is_told_with_its_producer() -> None:
    pending = PendingOffsets()
    first, other = OffsetCommitted("g", "t", 0, 5, -1, "", 0), OffsetCommitted("g", "t", 1, 9, -1, "", 0)
    pending.add(1, [first, other])
    pending.add(2, [first._replace(offset=7)])
    assert pending.newest_of("g") == {("t", 0): (7, 2), ("t", 1): (9, 1)}
    pending.end(2, is_commit=False)
    assert pending.newest_of("g") == {("t", 0): (5, 1), ("t", 1): (9, 1)}
    assert pending.newest_of("nobody") == {}
