"""The effects of commits in transactions. What they do to a group is in scenarios/transactions.txt."""

from __future__ import annotations

import pytest

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.messages import CommitRequest
from flowstone.coordinator.groups.records import NO_LEADER_EPOCH, OffsetCommitted
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.coordinator.groups.state import GroupEffects
from flowstone.coordinator.groups.transactional_commits import EndTransactionRequest, TransactionalCommitRequest
from flowstone.memory_budget import MemoryBudget
from flowstone.wire.end_markers import EndMarker
from tests.unit.coordinator.groups.harness import ManyTopics, default_settings

PRODUCER = TransactionalProducer(7, 3)
NOW_MS = 1000


@pytest.fixture
def shard() -> GroupShard:
    return GroupShard(GroupConfig(), lambda prefix: prefix, MemoryBudget(1 << 20), ManyTopics(), default_settings)


def commit(shard: GroupShard, **fields: int) -> GroupEffects:
    request = CommitRequest("g", [("t", 0, 5, NO_LEADER_EPOCH, None)], **fields)  # type: ignore[arg-type]
    return shard.commit_in_transaction(NOW_MS, None, TransactionalCommitRequest(PRODUCER, request))


def test_a_commit_is_written_in_the_producers_transaction_without_waiting_for_others(shard: GroupShard) -> None:
    effects = commit(shard)
    assert effects.records == [OffsetCommitted("g", "t", 0, 5, commit_timestamp_ms=NOW_MS)]
    assert (effects.producer, effects.marker, effects.can_wait) == (PRODUCER, None, False)


def test_a_refused_commit_writes_nothing_in_the_producers_transaction(shard: GroupShard) -> None:
    effects = commit(shard, generation_id=4)
    assert (effects.records, effects.producer) == ([], None)


def test_a_commit_changes_nothing_before_it_is_replayed(shard: GroupShard) -> None:
    commit(shard)
    commit(shard, generation_id=4)
    assert (shard._state.groups, shard.next_deadline()) == ({}, None)


def test_an_end_is_a_marker_by_the_rules_of_its_transaction_version(shard: GroupShard) -> None:
    marker = EndMarker(True, 9)
    effects = shard.end_transaction(NOW_MS, None, EndTransactionRequest(PRODUCER, marker, 2))
    assert (effects.records, effects.producer, effects.marker) == ([], PRODUCER, marker)
    assert effects.transaction_version == 2
