"""When the topics of regular expressions are determined, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.consumer import regexes
from flowstone.coordinator.groups.consumer.group import NOT_SEEN, ConsumerGroup
from flowstone.coordinator.groups.consumer.regexes import (
    REFRESH_MIN_MS,
    REGEX_CHARACTERS_MAX,
    ResolveRegexes,
    compile_regex,
    resolve_if_due,
    resolved,
)
from flowstone.coordinator.groups.consumer_records import ConsumerRegexStored
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ApiError, ErrorCode
from tests.unit.coordinator.groups.harness import START_MS, Coordinator, ManyTopics

CONFIG = GroupConfig(consumer_regex_refresh_interval_ms=100_000)


class Group:
    """A group whose members subscribe to `a.*`, which was resolved at START_MS, and to more if a test says so."""

    def __init__(self, *more: str) -> None:
        self.coordinator = Coordinator(CONFIG, lambda token, reply: None)
        self.topics = self.coordinator.topics
        assert isinstance(self.topics, ManyTopics)
        self.group = ConsumerGroup("g")
        self.shard: Any = self.coordinator.shard._state
        self.shard.groups["g"] = self.group
        for regex in ("a.*", *more):
            self.group.regex_subscribers[regex] += 1
        self.group.regexes["a.*"] = ConsumerRegexStored("g", "a.*", ("ab",), 0, START_MS)
        self.group.resolved_version = self.topics.version

    def due(self, after_ms: int, may_see: Any = None) -> list[Any]:
        turn = Turn(self.shard, START_MS + after_ms)
        resolve_if_due(turn, self.group, may_see)
        return turn.effects.tasks

    def resolved(self, found: dict[str, tuple[str, ...]] | None) -> list[Any]:
        turn = Turn(self.shard, START_MS + 1)
        resolved(turn, self.group, found)
        return list(turn.effects.records)


def test_nothing_is_due_while_nothing_has_changed() -> None:
    group = Group()
    assert group.due(0) == group.due(REFRESH_MIN_MS) == group.due(99_999) == []
    assert group.due(100_000) == [ResolveRegexes("g", ("a.*",))]


@pytest.mark.parametrize(("after_ms", "is_due"), [(REFRESH_MIN_MS - 1, False), (REFRESH_MIN_MS, True)])
def test_a_new_expression_is_resolved_soon_but_not_too_soon(after_ms: int, is_due: bool) -> None:
    assert group_tasks(Group("b.*"), after_ms) == ([("a.*", "b.*")] if is_due else [])


@pytest.mark.parametrize(("after_ms", "is_due"), [(REFRESH_MIN_MS - 1, False), (REFRESH_MIN_MS, True)])
def test_expressions_are_resolved_again_after_topics_have_changed(after_ms: int, is_due: bool) -> None:
    group = Group()
    assert isinstance(group.topics, ManyTopics)
    group.topics.deleted.add("x")
    assert group_tasks(group, after_ms) == ([("a.*",)] if is_due else [])
    assert group.group.resolved_version == (1 if is_due else 0)


def group_tasks(group: Group, after_ms: int) -> list[tuple[str, ...]]:
    return [task.regexes for task in group.due(after_ms)]


def test_the_latest_resolution_counts_and_one_runs_at_a_time() -> None:
    group = Group("b.*")
    group.group.regexes["b.*"] = ConsumerRegexStored("g", "b.*", (), 0, START_MS + 50)
    assert group.due(100_049) == []
    assert len(group.due(100_050)) == 1
    assert group.group.is_resolving
    assert group.due(200_000) == []


def test_a_group_without_expressions_resolves_nothing() -> None:
    group = Group()
    group.group.regex_subscribers.clear()
    assert group.due(10**9) == []


def test_who_asks_limits_the_topics() -> None:
    def may_see(topic: str) -> bool:
        return False

    (task,) = Group("b.*").due(REFRESH_MIN_MS, may_see)
    assert task.may_see is may_see


def test_topics_that_match_are_stored_and_others_than_before_raise_the_epoch() -> None:
    group = Group()
    group.group.is_resolving = True
    epoch, rebalances = group.group.epoch, group.group.rebalance_count
    records = group.resolved({"a.*": ("ad", "ac"), "unused": ("x",)})
    assert records[0] == ConsumerRegexStored("g", "a.*", ("ac", "ad"), 0, START_MS + 1)
    assert [getattr(each, "epoch", None) for each in records[1:]] == [epoch + 1]
    assert not group.group.is_resolving
    assert (group.group.epoch, group.group.rebalance_count) == (epoch + 1, rebalances + 1)
    assert (group.group.rebalance_reason, group.group.rebalance_timestamp_ms) == (
        "other topics match a.*",
        START_MS + 1,
    )


def test_the_same_topics_in_another_order_raise_no_epoch() -> None:
    group = Group()
    group.group.regexes["a.*"] = ConsumerRegexStored("g", "a.*", ("ab", "ac"), 0, START_MS)
    assert group.resolved({"a.*": ("ac", "ab")}) == [
        ConsumerRegexStored("g", "a.*", ("ab", "ac"), 0, START_MS + 1),
    ]


def test_a_new_expression_without_topics_raises_no_epoch() -> None:
    assert group_epochs(Group("b.*").resolved({"a.*": ("ab",), "b.*": ()})) == []
    assert len(group_epochs(Group("b.*").resolved({"a.*": ("ab",), "b.*": ("b",)}))) == 1


def group_epochs(records: list[Any]) -> list[int]:
    return [each.epoch for each in records if hasattr(each, "epoch")]


def test_a_resolution_that_failed_is_repeated() -> None:
    group = Group()
    group.group.is_resolving = True
    assert group.resolved(None) == []
    assert (group.group.is_resolving, group.group.resolved_version) == (False, NOT_SEEN)
    assert len(group.due(REFRESH_MIN_MS)) == 1


def test_an_expression_may_be_as_long_as_the_limit() -> None:
    assert compile_regex("a" * REGEX_CHARACTERS_MAX).fullmatch("a" * REGEX_CHARACTERS_MAX)
    with pytest.raises(ApiError, match=f"has {REGEX_CHARACTERS_MAX + 1} characters") as refused:
        compile_regex("a" * (REGEX_CHARACTERS_MAX + 1))
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("regex", ["(", "a**", "(?=a)", "(((a{100}){100}){100})"])
def test_an_expression_that_is_wrong_or_too_large_is_refused_with_the_reason(regex: str) -> None:
    with pytest.raises(ApiError, match=r"is not a valid regular expression: .") as refused:
        regexes.compile_regex(regex)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
