"""A shard that is loaded forgets the offsets of topics that were deleted while no broker hosted it."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups import expiry
from flowstone.coordinator.groups.config import EMPTY_GROUP_KEPT_MS, GroupConfig
from flowstone.coordinator.groups.records import GroupRecord, GroupRemoved, OffsetCommitted, OffsetRemoved
from tests.unit.coordinator.groups.harness import Coordinator, InTransaction


def coordinator(*log: GroupRecord | InTransaction) -> Coordinator:
    """A coordinator whose log has these records, before it loads them again."""
    made = Coordinator(GroupConfig(), lambda token, response: None)
    made.log.extend(log)
    made.committed = len(log)
    return made


def offset(group_id: str, topic: str, partition: int = 0) -> OffsetCommitted:
    return OffsetCommitted(group_id, topic, partition, 7, commit_timestamp_ms=1_700_000_000_000)


def removals(of: Coordinator, since: int) -> list[Any]:
    return [record for record in of.log[since:] if isinstance(record, OffsetRemoved | GroupRemoved)]


def test_only_the_offsets_of_topics_that_do_not_exist_are_removed() -> None:
    shard = coordinator(offset("a", "gone"), offset("a", "kept"), offset("b", "kept", 3), offset("b", "gone", 1))
    shard.topics.deleted.add("gone")
    shard.reload()
    shard.advance(0)
    assert sorted(removals(shard, 4)) == [OffsetRemoved("a", "gone", 0), OffsetRemoved("b", "gone", 1)]


def test_nothing_is_removed_while_all_topics_exist() -> None:
    shard = coordinator(offset("a", "t"), offset("b", "u"))
    shard.reload()
    shard.advance(EMPTY_GROUP_KEPT_MS)
    assert removals(shard, 2) == []


def test_an_offset_in_an_open_transaction_is_removed_too() -> None:
    shard = coordinator(InTransaction(TransactionalProducer(9, 0), (offset("a", "gone"),), None))
    shard.topics.deleted.add("gone")
    shard.reload()
    shard.advance(0)
    assert removals(shard, 1) == [OffsetRemoved("a", "gone", 0)]


def test_a_group_that_has_nothing_left_is_removed_a_minute_later() -> None:
    shard = coordinator(offset("a", "gone"))
    shard.topics.deleted.add("gone")
    shard.reload()
    shard.advance(EMPTY_GROUP_KEPT_MS)
    assert removals(shard, 1) == [OffsetRemoved("a", "gone", 0), GroupRemoved("a")]


def test_many_offsets_are_checked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "EXPIRY_OFFSETS_PER_TICK", 10)
    shard = coordinator(*(offset(f"g{number}", "gone") for number in range(100)))
    shard.topics.deleted.add("gone")
    shard.reload()
    shard.advance(0)
    assert 0 < len(removals(shard, 100)) <= 10
    shard.advance(1_000)
    assert len(removals(shard, 100)) == 100
