"""When offsets and groups are removed, to the millisecond, and what a check leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups import expiry
from flowstone.coordinator.groups.config import EMPTY_GROUP_KEPT_MS, EXPIRY_PAUSE_MS, GroupConfig
from flowstone.coordinator.groups.messages import CommitRequest
from flowstone.coordinator.groups.records import NO_LEADER_EPOCH, GroupRemoved, OffsetCommitted, OffsetRemoved
from flowstone.wire.end_markers import EndMarker
from tests.unit.coordinator.groups.harness import START_MS, Coordinator, ManyTopics

RETENTION_MS, INTERVAL_MS = 1000, 100
CONFIG = GroupConfig(offsets_retention_ms=RETENTION_MS, offsets_retention_check_interval_ms=INTERVAL_MS)


def coordinator(config: GroupConfig = CONFIG) -> Coordinator:
    return Coordinator(config, lambda token, response: None)


def commit(made: Coordinator, group_id: str, *places: tuple[str, int], retention_ms: int = -1) -> None:
    offsets = [(topic, partition, 1, NO_LEADER_EPOCH, None) for topic, partition in places]
    request = CommitRequest(group_id, offsets, retention_time_ms=retention_ms)
    made.take(made.shard.commit_offsets(made.now_ms, None, request))


def advance_to(made: Coordinator, time_ms: int) -> list[Any]:
    """Return the records of the meantime."""
    before = len(made.log)
    made.advance(time_ms - made.now_ms)
    return made.log[before:]


@pytest.mark.parametrize(("committed_ms", "expires_ms"), [(0, 1000), (1, 1100), (99, 1100), (100, 1100)])
def test_the_offsets_of_stand_alone_consumers_expire_at_the_first_check_after_their_retention(
    committed_ms: int, expires_ms: int
) -> None:
    made = coordinator()
    made.advance(committed_ms)
    commit(made, "g", ("t", 0), ("t", 1))
    assert advance_to(made, START_MS + expires_ms - 1) == []
    expected = [OffsetRemoved("g", "t", 0), OffsetRemoved("g", "t", 1), GroupRemoved("g")]
    assert advance_to(made, START_MS + expires_ms) == expected


def test_a_clients_own_retention_time_counts_whether_it_is_longer_or_shorter() -> None:
    made = coordinator()
    commit(made, "short", ("t", 0), retention_ms=200)
    commit(made, "long", ("t", 0), retention_ms=2000)
    assert advance_to(made, START_MS + 199) == []
    assert advance_to(made, START_MS + 200) == [OffsetRemoved("short", "t", 0), GroupRemoved("short")]
    assert advance_to(made, START_MS + 1999) == []
    assert advance_to(made, START_MS + 2000) == [OffsetRemoved("long", "t", 0), GroupRemoved("long")]


def test_a_group_keeps_its_place_as_long_as_one_of_its_offsets_is_left() -> None:
    made = coordinator()
    commit(made, "g", ("t", 0))
    made.advance(500)
    commit(made, "g", ("t", 1))
    assert advance_to(made, START_MS + 1499) == [OffsetRemoved("g", "t", 0)]
    assert advance_to(made, START_MS + 1500) == [OffsetRemoved("g", "t", 1), GroupRemoved("g")]


def test_offsets_expire_by_the_steady_clock_if_that_is_behind_and_not_if_it_is_ahead() -> None:
    for steady_ms, is_expired in ((-1, False), (0, True), (5000, True)):
        made = coordinator()
        commit(made, "g", ("t", 0))
        made.shard._state.steady_time_ms = lambda at=START_MS + RETENTION_MS + steady_ms: at  # type: ignore[misc]
        assert bool(advance_to(made, START_MS + RETENTION_MS)) is is_expired


def test_checks_go_on_at_their_interval() -> None:
    made = coordinator()
    for number in range(1, 4):
        deadline_ms = made.shard.next_deadline()
        assert deadline_ms == START_MS + number * INTERVAL_MS
        advance_to(made, deadline_ms)


def test_a_check_examines_a_limited_number_of_offsets_and_groups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "EXPIRY_OFFSETS_PER_TICK", 4)
    made = coordinator()
    for group_id in ("a", "b", "c"):
        commit(made, group_id, ("t", 0))
    made.now_ms = START_MS + RETENTION_MS
    sizes = []
    for _ in range(2):  # a group and its offset count as two
        effects = made.shard.tick(made.now_ms)
        sizes.append(sum(isinstance(each, OffsetRemoved) for each in effects.records))
        made.take(effects)
        deadline_ms = made.shard.next_deadline()
        assert deadline_ms is not None
        pause_ms, made.now_ms = deadline_ms - made.now_ms, deadline_ms
        assert pause_ms == (EXPIRY_PAUSE_MS if len(sizes) == 1 else INTERVAL_MS)
    assert sizes == [2, 1]


# After loading


def test_offsets_of_topics_that_do_not_exist_are_removed_after_loading() -> None:
    made = coordinator()
    commit(made, "g", ("t", 0), ("u", 0), ("t", 1 << 20))
    commit(made, "h", ("u", 3))
    topics = made.topics
    assert isinstance(topics, ManyTopics)
    topics.deleted.add("u")
    made.reload()
    removed = advance_to(made, made.now_ms)
    assert sorted(removed) == [OffsetRemoved("g", "t", 1 << 20), OffsetRemoved("g", "u", 0), OffsetRemoved("h", "u", 3)]


def test_pending_offsets_of_topics_that_do_not_exist_are_removed_after_loading() -> None:
    made = coordinator()
    producer = TransactionalProducer(1, 0)
    made.shard.replay([OffsetCommitted("g", "u", 0, 5)], producer)
    topics = made.topics
    assert isinstance(topics, ManyTopics)
    topics.deleted.add("u")
    made.take(made.shard.loaded(made.now_ms))
    assert advance_to(made, made.now_ms) == [OffsetRemoved("g", "u", 0)]
    assert made.shard._state.pending.of_group("g") == {}


def test_a_shard_without_groups_waits_for_the_first_interval() -> None:
    assert coordinator().shard.next_deadline() == START_MS + INTERVAL_MS


# Groups without offsets

RARE = GroupConfig(offsets_retention_check_interval_ms=10 * EMPTY_GROUP_KEPT_MS)


def test_a_group_without_anything_is_removed_a_minute_after_it_became_empty() -> None:
    made = coordinator(RARE)
    commit(made, "g", ("u", 0))
    commit(made, "h", ("t", 0))
    topics = made.topics
    assert isinstance(topics, ManyTopics)
    topics.deleted.add("u")
    made.reload()
    since_ms = made.now_ms
    assert advance_to(made, since_ms + EMPTY_GROUP_KEPT_MS - 1) == [OffsetRemoved("g", "u", 0)]
    assert advance_to(made, since_ms + EMPTY_GROUP_KEPT_MS) == [GroupRemoved("g")]
    assert made.shard.next_deadline() == since_ms + RARE.offsets_retention_check_interval_ms


def test_offsets_with_a_newer_pending_one_do_not_expire_before_the_transaction_ends() -> None:
    made = coordinator()
    producer = TransactionalProducer(1, 0)
    commit(made, "g", ("t", 0), ("t", 1))
    made.shard.replay([OffsetCommitted("g", "t", 0, 9)], producer)
    assert advance_to(made, START_MS + 5 * RETENTION_MS) == [OffsetRemoved("g", "t", 1)]
    made.shard.replay_marker(producer, EndMarker(is_commit=False, coordinator_epoch=0))
    assert advance_to(made, START_MS + 5 * RETENTION_MS + INTERVAL_MS) == [
        OffsetRemoved("g", "t", 0),
        GroupRemoved("g"),
    ]
