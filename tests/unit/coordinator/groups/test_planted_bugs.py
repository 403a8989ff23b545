"""The simulation's oracle is worth something only if it finds bugs: each of these is planted, and must be found."""

from __future__ import annotations

import pytest

from flowstone.coordinator.groups import commits
from flowstone.coordinator.groups.classic import joining, membership, timeouts
from flowstone.coordinator.groups.classic.group import Group
from flowstone.coordinator.groups.messages import CommitRequest, CommittedOffset
from flowstone.coordinator.groups.offsets import OffsetStore
from flowstone.coordinator.groups.records import OffsetCommitted
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ErrorCode
from tests.unit.coordinator.groups.simulation import World

SEEDS_MAX = 500


def find(promise: str, first: int = 0) -> None:
    """The first seed that breaks something must break this promise."""
    broken = next(filter(None, (failure(seed) for seed in range(first, first + SEEDS_MAX))), "nothing")
    assert promise in broken, f"found {broken}"


def failure(seed: int) -> str:
    try:
        World(seed).run()
    except AssertionError as error:
        return f"seed {seed}: {error}"
    return ""


def test_a_commit_that_nobody_checks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_check_commit", lambda group, request: ErrorCode.NONE)
    find("G2")


def test_a_commit_of_an_old_generation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_the_member_only(group: Group | None, request: CommitRequest) -> ErrorCode:
        return group.check_member(request.member_id, None) if group else ErrorCode.GROUP_ID_NOT_FOUND

    monkeypatch.setattr(commits, "_check_commit", check_the_member_only)
    find("G2")


def test_an_assignment_that_differs_from_the_stored_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assign = membership._assign

    def tell_everybody_the_same(turn: Turn, group: Group, assignments: dict[str, bytes]) -> None:
        longest = max(assignments.values(), default=b"")
        assign(turn, group, dict.fromkeys(group.members, longest))

    monkeypatch.setattr(membership, "_assign", tell_everybody_the_same)
    find("G1")


def test_a_session_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(turn: Turn, group: Group, member_id: str) -> bool:
        if member_id in group.members:
            turn.keep_session(group, member_id)
        else:
            group.drop_pending(member_id)
        return False

    monkeypatch.setattr(timeouts, "_end_session", keep)
    find("G5")


def test_an_offset_that_is_never_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    to_change = OffsetStore.to_change

    def keep_the_first(store: OffsetStore, group_id: str) -> dict[tuple[str, int], OffsetCommitted]:
        return {} if store.of_group(group_id) else to_change(store, group_id)

    monkeypatch.setattr(OffsetStore, "to_change", keep_the_first)
    find("G3")


def test_a_position_beyond_the_committed_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def skip_one(offset: int, leader_epoch: int, metadata: str) -> object:
        return CommittedOffset(offset + 1, leader_epoch, metadata)

    monkeypatch.setattr(World, "_check_log", lambda world: None)  # it would be found by G3 before anybody reads
    monkeypatch.setattr(commits, "CommittedOffset", skip_one)
    find("G4")


def test_a_join_that_is_never_answered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_the_first(turn: Turn, group: Group, member_id: str, token: object) -> None:
        group.joins[member_id] = token

    monkeypatch.setattr(joining, "park_join", forget_the_first)
    find("never answered")
