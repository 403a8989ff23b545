"""The state of share partitions: when it is initialized, noted, reset and deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.share import offsets, states
from flowstone.coordinator.groups.share.group import ShareGroup
from flowstone.coordinator.groups.share.messages import InitializeStates
from flowstone.coordinator.groups.share.offsets import CHANGE_TIMEOUT_MS, Begun
from flowstone.coordinator.groups.share.states import ATTEMPT_INTERVAL_MS
from flowstone.coordinator.groups.share.target import known_topics_hash, topics_hash, update_target
from flowstone.coordinator.groups.share_records import (
    ShareGroupStored,
    ShareMemberTargetStored,
    ShareStatesStored,
    ShareTargetStored,
    TopicState,
)
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.topics import GroupTopic
from flowstone.errors import ErrorCode
from tests.unit.coordinator.groups.harness import START_MS, Coordinator

A, B = b"a" * 16, b"b" * 16


class Topics:
    """Topics a and b with as many partitions as a test says."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.version = 0

    def partition_count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def find(self, name: str) -> GroupTopic | None:
        count = self.counts.get(name)
        return None if count is None else GroupTopic(name, name.encode() * 16, count)

    def name_of(self, topic_id: bytes) -> str | None:
        return topic_id[:1].decode()


class World:
    def __init__(self, **counts: int) -> None:
        self.replies: list[Any] = []
        self.topics: Any = Topics(**counts)
        self.coordinator = Coordinator(GroupConfig(), lambda token, reply: None, self.topics)
        self.shard: Any = self.coordinator.shard._state
        self.group = ShareGroup("g")
        self.shard.groups["g"] = self.group

    def turn(self, after_ms: int = 0) -> Turn:
        return Turn(self.shard, START_MS + after_ms)

    def initialize(self, *topics: str, after_ms: int = 0) -> tuple[bool, list[Any], list[Any]]:
        """Return whether state is missing, the records and the tasks."""
        turn = self.turn(after_ms)
        is_missing = states.initialize_missing(turn, self.group, 7, topics)
        return is_missing, list(turn.effects.records), list(turn.effects.tasks)

    def ask(self, operation: Any, *arguments: Any) -> tuple[Any, list[Any]]:
        """Return the reply and the records."""
        turn = self.turn()
        operation(turn, "token", "g", *arguments)
        ((token, reply),) = turn.effects.replies
        assert token == "token"
        return reply, list(turn.effects.records)


def state(topic_id: bytes, *indexes: int) -> TopicState:
    return TopicState(topic_id, topic_id[:1].decode(), indexes)


def stored(
    initializing: tuple[TopicState, ...] = (),
    initialized: tuple[TopicState, ...] = (),
    deleting: tuple[tuple[bytes, str], ...] = (),
) -> ShareStatesStored:
    return ShareStatesStored("g", initializing, initialized, deleting)


# Initialization


def test_missing_state_is_noted_and_asked_for() -> None:
    world = World(a=2, b=1)
    assert world.initialize("a", "b", "nowhere") == (
        True,
        [stored((state(A, 0, 1), state(B, 0)))],
        [InitializeStates("g", 7, {A: (0, 1), B: (0,)})],
    )


def test_nothing_is_asked_for_once_all_state_exists() -> None:
    world = World(a=2)
    world.group.initialized = {A: ("a", frozenset({0, 1}))}
    world.group.first_attempt_ms = 5
    assert world.initialize("a") == (False, [], [])
    assert world.group.first_attempt_ms is None
    assert world.initialize() == (False, [], [])


def test_only_what_has_no_state_is_asked_for_and_what_is_noted_is_not_noted_again() -> None:
    world = World(a=3)
    world.group.initialized = {A: ("a", frozenset({1}))}
    world.group.initializing = {A: ("a", frozenset({0}))}
    assert world.initialize("a") == (
        True,
        [stored((state(A, 0, 2),), (state(A, 1),))],
        [InitializeStates("g", 7, {A: (0, 2)})],
    )
    world = World(a=1)
    world.group.initializing = {A: ("a", frozenset({0}))}
    assert world.initialize("a") == (True, [], [InitializeStates("g", 7, {A: (0,)})])


def test_an_attempt_without_a_result_is_repeated_after_a_time() -> None:
    world = World(a=1)
    world.initialize("a")
    world.group.initializing = {A: ("a", frozenset({0}))}
    assert world.initialize("a", after_ms=ATTEMPT_INTERVAL_MS - 1) == (True, [], [])
    assert len(world.initialize("a", after_ms=ATTEMPT_INTERVAL_MS)[2]) == 1
    assert world.group.first_attempt_ms == START_MS
    states.failed(world.group, START_MS + ATTEMPT_INTERVAL_MS + 500)
    assert world.initialize("a", after_ms=ATTEMPT_INTERVAL_MS + 499)[2] == []
    assert len(world.initialize("a", after_ms=ATTEMPT_INTERVAL_MS + 500)[2]) == 1


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [(2, {A: (0, 1)}), (3, {A: (0, 1, 2)}), (4, {A: (0, 1, 2), B: (0,)}), (9, {A: (0, 1, 2), B: (0, 1)})],
)
def test_an_attempt_has_a_limited_number_of_partitions(
    monkeypatch: pytest.MonkeyPatch, limit: int, wanted: dict[bytes, tuple[int, ...]]
) -> None:
    monkeypatch.setattr(states, "PARTITIONS_PER_ATTEMPT_MAX", limit)
    _, records, (task,) = World(a=3, b=2).initialize("b", "a")
    assert task.partitions == wanted
    assert records == [stored(tuple(state(topic_id, *indexes) for topic_id, indexes in wanted.items()))]


def test_state_that_exists_now_is_noted_and_the_rest_is_still_initializing() -> None:
    world = World(a=3, b=1)
    world.group.initializing = {A: ("a", frozenset({0, 1})), B: ("b", frozenset({0}))}
    world.group.initialized = {A: ("a", frozenset({2}))}
    world.group.next_attempt_ms = START_MS + 1
    turn = world.turn()
    states.initialized(turn, world.group, {A: (0, 2)})
    assert list(turn.effects.records) == [stored((state(A, 1), state(B, 0)), (state(A, 0, 2),))]
    assert world.group.next_attempt_ms == 0
    turn = world.turn()
    states.initialized(turn, world.group, {b"c" * 16: (0,)})
    assert list(turn.effects.records) == []


def test_topics_that_were_deleted_are_forgotten_wherever_they_are() -> None:
    world = World()
    world.group.initializing = {A: ("a", frozenset({0})), B: ("b", frozenset({0}))}
    world.group.initialized = {A: ("a", frozenset({1}))}
    world.group.deleting = {A: "a"}
    turn = world.turn()
    states.forget_topics(turn, world.group, frozenset({A}))
    assert list(turn.effects.records) == [stored((state(B, 0),))]
    for only in ("initializing", "initialized", "deleting"):
        group = ShareGroup("g")
        setattr(group, only, {A: "a" if only == "deleting" else ("a", frozenset({0}))})
        turn = world.turn()
        states.forget_topics(turn, group, frozenset({B}))
        assert list(turn.effects.records) == []
        states.forget_topics(turn, group, frozenset({A, B}))
        assert list(turn.effects.records) == [stored()]


# Operators


def test_the_partitions_that_have_state_are_described() -> None:
    world = World(a=3)
    world.group.epoch = 9
    world.group.initialized = {A: ("a", frozenset({2, 0}))}
    assert world.ask(offsets.describe) == (Begun(9, {A: (0, 2)}), [])
    world.shard.groups.clear()
    assert world.ask(offsets.describe) == (Begun(0, {}), [])


def test_a_reset_raises_the_epoch_and_keeps_members_from_initializing_for_a_time() -> None:
    world = World(a=3)
    world.group.epoch, world.group.metadata_hash = 9, 77
    world.group.deleting = {A: "a", B: "b"}
    reply, records = world.ask(offsets.begin_reset, {"a": (0, 2), "nowhere": (0,)})
    assert reply == Begun(10, {A: (0, 2)})
    assert records == [ShareGroupStored("g", 10, 77), stored((state(A, 0, 2),), (), ((B, "b"),))]
    assert world.group.next_attempt_ms == START_MS + CHANGE_TIMEOUT_MS


def test_a_reset_makes_a_group_that_does_not_exist() -> None:
    world = World(a=1)
    world.shard.groups.clear()
    reply, _ = world.ask(offsets.begin_reset, {"a": (0,)})
    assert reply == Begun(2, {A: (0,)})
    assert world.shard.groups["g"].next_attempt_ms == START_MS + CHANGE_TIMEOUT_MS


@pytest.mark.parametrize(
    ("operation", "argument"), [(offsets.begin_reset, {"a": (0,)}), (offsets.begin_deletion, None)]
)
def test_a_group_with_members_or_of_another_kind_is_not_changed(operation: Any, argument: Any) -> None:
    world = World(a=1)
    member: Any = SimpleNamespace()
    world.group.members_by_id["m"] = member
    error, records = world.ask(operation, argument)
    assert (error.code, records) == (ErrorCode.NON_EMPTY_GROUP, [])
    assert world.group.next_attempt_ms == 0


def test_a_deletion_takes_all_state_of_the_topics_and_what_was_begun_before() -> None:
    world = World(a=3, b=2, c=2)
    world.group.epoch = 9
    world.group.initialized = {A: ("a", frozenset({0})), B: ("b", frozenset({1}))}
    world.group.initializing = {A: ("a", frozenset({2}))}
    world.group.deleting = {b"c" * 16: "c"}
    reply, records = world.ask(offsets.begin_deletion, frozenset({A}))
    assert reply == Begun(9, {A: (0, 2)})
    assert records == [stored((), (state(B, 1),), ((A, "a"), (b"c" * 16, "c")))]
    assert world.group.next_attempt_ms == START_MS + CHANGE_TIMEOUT_MS
    reply, records = world.ask(offsets.begin_deletion, None)
    assert reply == Begun(9, {A: (0, 2), B: (1,), b"c" * 16: (0, 1)})
    assert records == [stored((), (), ((A, "a"), (B, "b"), (b"c" * 16, "c")))]


def test_a_deletion_of_what_is_not_there_writes_nothing() -> None:
    world = World(a=1)
    assert world.ask(offsets.begin_deletion, frozenset({A})) == (Begun(world.group.epoch, {}), [])
    assert world.group.next_attempt_ms == 0


def test_the_ends_of_changes_are_noted_if_the_group_still_has_them() -> None:
    world = World(a=1)
    world.group.initializing, world.group.deleting = {A: ("a", frozenset({0}))}, {B: "b"}
    world.group.next_attempt_ms = 5
    reply, records = world.ask(offsets.end_reset, {A: (0,)})
    assert (reply, records) == (None, [stored((), (state(A, 0),), ((B, "b"),))])
    world.group.next_attempt_ms = 5
    assert world.ask(offsets.end_deletion, frozenset({A})) == (None, [])
    assert world.group.next_attempt_ms == 0
    assert world.ask(offsets.end_deletion, frozenset({A, B})) == (None, [stored((state(A, 0),))])
    world.shard.groups.clear()
    assert world.ask(offsets.end_deletion, frozenset({B})) == world.ask(offsets.end_reset, {A: (0,)}) == (None, [])


# Targets


def test_a_target_has_the_partitions_that_have_state_and_exist_and_only_changes_are_stored() -> None:
    world = World(a=2, b=1)
    world.group.initialized = {A: ("a", frozenset({0, 1, 5})), B: ("b", frozenset())}
    turn = world.turn(9)
    target = update_target(turn, world.group, 4, {"m": ("a", "b", "nowhere")})
    assert target == {"m": {A: (0, 1)}}
    assert list(turn.effects.records) == [
        ShareMemberTargetStored("g", "m", {A: (0, 1)}),
        ShareTargetStored("g", 4, START_MS + 9),
    ]
    member: Any = SimpleNamespace(target={A: (0, 1)})
    world.group.members_by_id["m"] = member
    turn = world.turn(9)
    update_target(turn, world.group, 5, {"m": ("a",)})
    assert list(turn.effects.records) == [ShareTargetStored("g", 5, START_MS + 9)]


def test_the_hash_of_topics_changes_with_all_that_an_assignment_depends_on() -> None:
    world = World(a=2, b=1)
    turn, group = world.turn(), world.group
    hashes = [topics_hash(turn, group, []), topics_hash(turn, group, ["a"]), topics_hash(turn, group, ["b", "a"])]
    assert topics_hash(turn, group, ["a", "b"]) == hashes[-1]
    assert topics_hash(turn, group, ["a", "nowhere"]) == hashes[1]
    world.topics.counts["a"] = 3
    hashes.append(topics_hash(turn, group, ["a"]))
    group.initialized = {A: ("a", frozenset({0}))}
    hashes.append(topics_hash(turn, group, ["a"]))
    assert len(set(hashes)) == len(hashes)
    many = [topics_hash(turn, group, [name]) for name in "ab"] + [*hashes]
    assert all(-(2**63) <= each < 2**63 for each in many)


def test_the_hash_is_kept_until_one_of_its_inputs_changes() -> None:
    world = World(a=2)
    turn, group = world.turn(), world.group
    group.topic_counts["a"] = 1
    first = known_topics_hash(turn, group)
    world.topics.counts["a"] = 3
    assert known_topics_hash(turn, group) == first
    for change in ("version", "subscriptions_revision", "states_revision"):
        world.topics.counts["a"] += 1
        holder: Any = world.topics if change == "version" else group
        setattr(holder, change, getattr(holder, change) + 1)
        found = known_topics_hash(turn, group)
        assert found == topics_hash(turn, group, ["a"]) != first
        first = found
