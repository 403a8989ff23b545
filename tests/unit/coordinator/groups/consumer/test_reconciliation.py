"""One step of a member towards its target, case by case."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from flowstone.coordinator.groups.consumer.reconciliation import Position, reconcile
from flowstone.coordinator.groups.consumer_records import MemberState

A, B, C = ((b"t" * 16, index) for index in range(3))
Partition = tuple[bytes, int]
NONE: Mapping[Partition, int] = {}


def at(
    assigned: Mapping[Partition, int] = NONE,
    revoking: Mapping[Partition, int] = NONE,
    *,
    epoch: int = 5,
    previous: int = 4,
    state: MemberState = MemberState.STABLE,
) -> Position:
    return Position(epoch, previous, state, assigned, revoking)


def step(
    position: Position,
    *target: Partition,
    epoch: int = 6,
    owned: tuple[Partition, ...] | None = None,
    taken: tuple[Partition, ...] = (),
) -> Position:
    said = None if owned is None else frozenset(owned)
    return reconcile(position, frozenset(target), epoch, said, lambda partition: partition not in taken)


def test_a_member_gets_what_is_free_in_the_epoch_of_the_assignment() -> None:
    assert step(at({A: 3}), A, B) == at({A: 3, B: 6}, epoch=6, previous=5)


def test_a_member_waits_for_what_others_still_hold() -> None:
    waiting = step(at({A: 3}), A, B, C, taken=(B,))
    assert waiting == at({A: 3, C: 6}, epoch=6, previous=5, state=MemberState.UNRELEASED)
    assert step(waiting, A, B, C) == at({A: 3, C: 6, B: 6}, epoch=6, previous=5)


def test_a_member_first_gives_up_what_it_shall_not_have_and_stays_in_its_epoch() -> None:
    expected = at({A: 3}, {B: 4}, state=MemberState.UNREVOKED)
    assert step(at({A: 3, B: 4}), A) == expected
    assert step(at({A: 3, B: 4}), A, C, owned=(A, B)) == expected


@pytest.mark.parametrize("owned", [None, (B,), (A, B)])
def test_a_member_that_has_not_confirmed_stays_where_it_is(owned: tuple[Partition, ...] | None) -> None:
    unrevoked = at({A: 3}, {B: 4}, state=MemberState.UNREVOKED)
    assert step(unrevoked, A, C, owned=owned) == unrevoked


@pytest.mark.parametrize("owned", [(), (A,), (C,)])
def test_a_member_that_has_confirmed_enters_the_epoch(owned: tuple[Partition, ...]) -> None:
    unrevoked = at({A: 3}, {B: 4}, state=MemberState.UNREVOKED)
    assert step(unrevoked, A, C, owned=owned) == at({A: 3, C: 6}, epoch=6, previous=5)


def test_what_was_to_be_given_up_is_given_up_though_the_target_has_it_again() -> None:
    unrevoked = at({A: 3}, {B: 4}, state=MemberState.UNREVOKED)
    assert step(unrevoked, A, B) == unrevoked
    assert step(unrevoked, A, B, owned=(A,)) == at({A: 3, B: 6}, epoch=6, previous=5)


def test_more_may_have_to_be_given_up_before_the_first_is_confirmed() -> None:
    unrevoked = at({A: 3, C: 3}, {B: 4}, state=MemberState.UNREVOKED)
    assert step(unrevoked, C) == at({C: 3}, {A: 3, B: 4}, state=MemberState.UNREVOKED)


def test_a_member_keeps_its_previous_epoch_within_an_epoch() -> None:
    assert step(at({A: 3}), A, epoch=5) == at({A: 3})
    assert step(at({A: 3}), A, epoch=7) == at({A: 3}, epoch=7, previous=5)


def test_a_member_without_a_target_has_nothing() -> None:
    assert step(at()) == at(epoch=6, previous=5)
