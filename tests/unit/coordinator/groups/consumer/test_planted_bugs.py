"""The simulation's oracle is worth something only if it finds bugs: each of these is planted, and must be found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowstone.coordinator.groups.commits import accept_offsets
from flowstone.coordinator.groups.consumer import commits, heartbeat, removal, target
from flowstone.coordinator.groups.consumer.reconciliation import Position, reconcile
from flowstone.coordinator.groups.consumer_records import MemberState, Partition
from flowstone.coordinator.groups.messages import CommitRequest, CommitResponse
from flowstone.coordinator.groups.state import Turn
from tests.unit.coordinator.groups.consumer.simulation import World

SEEDS_MAX = 300
Free = Callable[[Partition], bool]


def find(*promises: str) -> None:
    """The first seed that breaks something must break one of these promises."""
    broken = next(filter(None, (failure(seed) for seed in range(SEEDS_MAX))), "nothing")
    assert any(promise in broken for promise in promises), f"found {broken}"


def failure(seed: int) -> str:
    try:
        World(seed).run()
    except AssertionError as error:
        return f"seed {seed}: {error}"
    return ""


def test_a_partition_that_is_given_before_it_was_released_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_everything(before: Position, goal: Any, epoch: int, owned: Any, is_free: Free) -> Position:
        return reconcile(before, goal, epoch, owned, lambda partition: True)

    monkeypatch.setattr(heartbeat, "reconcile", take_everything)
    find("P1")


def test_an_epoch_that_rises_before_partitions_were_given_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-19974."""

    def rise_too_soon(before: Position, goal: Any, epoch: int, owned: Any, is_free: Free) -> Position:
        after = reconcile(before, goal, epoch, owned, is_free)
        return after._replace(epoch=epoch) if after.state is MemberState.UNREVOKED else after

    monkeypatch.setattr(heartbeat, "reconcile", rise_too_soon)
    find("P1", "P2", "P3")


def test_a_revocation_that_nobody_confirmed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(before: Position, goal: Any, epoch: int, owned: Any, is_free: Free) -> Position:
        return reconcile(before, goal, epoch, frozenset(), is_free)

    monkeypatch.setattr(heartbeat, "reconcile", believe)
    find("P1", "P3")


def test_a_kept_partition_that_pauses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_the_world(before: Position, goal: Any, epoch: int, owned: Any, is_free: Free) -> Position:
        is_behind = before.epoch not in (0, epoch) and before.assigned
        return reconcile(before, frozenset() if is_behind else goal, epoch, owned, is_free)

    monkeypatch.setattr(heartbeat, "reconcile", stop_the_world)
    find("P2", "P6")


def test_a_removal_that_assigns_nothing_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "bump", lambda turn, group, reason, metadata_hash=None: None)
    find("P6")


def test_a_commit_of_a_partition_that_has_moved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept_everything(turn: Turn, token: Any, request: CommitRequest) -> None:
        turn.reply(token, CommitResponse(accept_offsets(turn, request)))

    monkeypatch.setattr(commits, "commit_outdated", accept_everything)
    find("P3")


def test_a_change_that_is_not_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write = heartbeat.write

    def forget(turn: Turn, *records: Any) -> None:
        write(turn, *records)
        if len(turn.effects.records) > 1:
            del turn.effects.records[-1]

    monkeypatch.setattr(heartbeat, "write", forget)
    find("P4")


def test_an_assignor_that_forgets_a_partition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assign = target.ASSIGNORS["uniform"]

    def forget(members: Any, counts: Any) -> Any:
        return assign(members, {topic: max(count - 1, 0) for topic, count in counts.items()})

    monkeypatch.setattr(target, "ASSIGNORS", {"uniform": forget})
    find("P6")


def test_an_epoch_from_the_future_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_ahead(before: Position, goal: Any, epoch: int, owned: Any, is_free: Free) -> Position:
        return reconcile(before, goal, epoch + 1, owned, is_free)

    monkeypatch.setattr(heartbeat, "reconcile", run_ahead)
    find("P5", "P6")


def test_without_a_bug_nothing_is_found() -> None:
    assert [failure(seed) for seed in range(20)] == [""] * 20
