"""What each stored record of a consumer group, and its tombstone, makes of the group."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.consumer.group import FIRST_EPOCH, ConsumerGroup
from flowstone.coordinator.groups.consumer_records import (
    ConsumerGroupStored,
    ConsumerKey,
    ConsumerMemberCurrentStored,
    ConsumerMemberStored,
    ConsumerMemberTargetStored,
    ConsumerRecord,
    ConsumerRecordRemoved,
    ConsumerRegexStored,
    ConsumerTargetStored,
    MemberState,
)
from flowstone.coordinator.groups.timers import Timer, TimerKind
from tests.unit.coordinator.groups.harness import Coordinator

PLACE = (b"t" * 16, 0)
MEMBER = ConsumerMemberStored("g", "m", "i", None, "client", "/host", ("t",), None, 1000, None)
RECORDS: tuple[ConsumerRecord, ...] = (
    ConsumerGroupStored("g", 5, 77),
    MEMBER,
    ConsumerRegexStored("g", "a.*", ("ab",), 1, 9),
    ConsumerMemberTargetStored("g", "m", frozenset({PLACE})),
    ConsumerTargetStored("g", 4, 123),
    ConsumerMemberCurrentStored("g", "m", 4, 3, MemberState.STABLE, {PLACE: 4}, {}),
)


def replayed(*records: ConsumerRecord) -> tuple[Any, Any]:
    """Return the state of a shard after these records, and the group."""
    coordinator = Coordinator(GroupConfig(), lambda token, reply: None)
    coordinator.shard.replay(records)
    state: Any = coordinator.shard._state
    return state, state.groups.get("g")


def test_every_record_is_found_in_the_group() -> None:
    _, group = replayed(*RECORDS)
    assert isinstance(group, ConsumerGroup)
    assert (group.epoch, group.metadata_hash) == (5, 77)
    assert (group.assignment_epoch, group.assignment_timestamp_ms) == (4, 123)
    assert group.targets == {"m": {PLACE}}
    assert group.regexes == {"a.*": RECORDS[2]}
    member = group.members_by_id["m"]
    assert (member.stored, member.epoch, member.previous_epoch, member.assigned) == (MEMBER, 4, 3, {PLACE: 4})
    assert group.owners == {PLACE: "m"}
    assert group.static_members == {"i": "m"}


def test_targets_are_partial_until_their_epoch_is_stored() -> None:
    assert replayed(*RECORDS)[1].has_partial_targets is False
    assert replayed(*RECORDS, RECORDS[3])[1].has_partial_targets is True


def removed(key: ConsumerKey, name: str = "") -> ConsumerRecordRemoved:
    return ConsumerRecordRemoved("g", key, name)


def test_tombstones_remove_what_they_name_and_nothing_else() -> None:
    _, group = replayed(*RECORDS, removed(ConsumerKey.MEMBER_TARGET, "m"))
    assert (group.targets, list(group.members_by_id)) == ({}, ["m"])
    _, group = replayed(*RECORDS, removed(ConsumerKey.TARGET))
    assert (group.assignment_epoch, group.targets) == (FIRST_EPOCH, {"m": {PLACE}})
    _, group = replayed(*RECORDS, removed(ConsumerKey.REGEX, "a.*"))
    assert group.regexes == {}
    _, group = replayed(*RECORDS, removed(ConsumerKey.MEMBER_CURRENT, "m"))
    assert (group.members_by_id["m"].assigned, group.owners) == ({}, {})
    _, group = replayed(*RECORDS, removed(ConsumerKey.MEMBER, "m"))
    assert (group.members_by_id, group.static_members, group.owners) == ({}, {}, {})
    state, _ = replayed(*RECORDS, removed(ConsumerKey.GROUP))
    assert state.groups == {}
    _, group = replayed(*RECORDS, removed(ConsumerKey.PARTITION_METADATA))
    assert (group.epoch, group.targets) == (5, {"m": {PLACE}})


@pytest.mark.parametrize("key", list(ConsumerKey))
def test_tombstones_of_what_is_unknown_are_ignored(key: ConsumerKey) -> None:
    assert replayed(removed(key, "x"))[0].groups == {}
    if key is not ConsumerKey.GROUP:
        _, group = replayed(*RECORDS, removed(key, "x"))
        assert list(group.members_by_id) == list(group.targets) == ["m"]
        assert list(group.regexes) == ["a.*"]


def test_a_member_that_is_removed_has_no_timers_any_more() -> None:
    coordinator = Coordinator(GroupConfig(), lambda token, reply: None)
    coordinator.shard.replay(RECORDS)
    timers = coordinator.shard._state.timers
    kinds = (TimerKind.SESSION, TimerKind.JOIN, TimerKind.SYNC)
    for kind in kinds:
        timers.schedule(Timer(kind, "g", "m"), 10**15)
        timers.schedule(Timer(kind, "g", "n"), 10**15)
    coordinator.shard.replay([removed(ConsumerKey.MEMBER, "m")])
    assert [timers.deadline(Timer(kind, "g", "m")) for kind in kinds] == [None] * 3
    assert [timers.deadline(Timer(kind, "g", "n")) for kind in kinds] == [10**15] * 3
