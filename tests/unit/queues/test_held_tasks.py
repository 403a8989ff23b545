"""What a consumer holds at one leader: ranges of acknowledgements, renewals, and what is lost."""

from __future__ import annotations

from typing import Any

from flowstone.queues.held_tasks import AckRange, HeldTasks
from flowstone.queues.task import Outcome

PLACE = (b"t" * 16, 0)
OTHER = (b"t" * 16, 1)


def holding(*offsets: int, lock_s: float = 30.0) -> HeldTasks:
    held = HeldTasks()
    held.lock_s = lock_s
    for offset in offsets:
        held.acquire(PLACE, offset, task(offset), 0.0)
    return held


def task(offset: int) -> Any:
    return f"task {offset}"


def test_neighbours_with_one_outcome_are_one_range() -> None:
    held = holding(1, 2, 3, 5, 6)
    for offset in (1, 2, 3, 5):
        held.settle(PLACE, offset, Outcome.ACCEPT)
    held.settle(PLACE, 6, Outcome.REJECT)
    assert held.take_pending() == {
        PLACE: [AckRange(1, 3, Outcome.ACCEPT), AckRange(5, 5, Outcome.ACCEPT), AckRange(6, 6, Outcome.REJECT)]
    }
    assert not held.has_pending


def test_a_gap_is_acknowledged_as_such() -> None:
    held = holding(1)
    held.acquire(PLACE, 2, None, 0.0)
    assert held.take_pending() == {PLACE: [AckRange(2, 2, Outcome.GAP)]}


def test_only_the_acknowledgements_of_some_partitions_are_taken() -> None:
    held = holding(1)
    held.acquire(OTHER, 1, task(1), 0.0)
    held.settle(PLACE, 1, Outcome.ACCEPT)
    held.settle(OTHER, 1, Outcome.ACCEPT)
    assert held.take_pending(frozenset({OTHER})).keys() == {OTHER}
    assert held.take_pending().keys() == {PLACE}


def test_a_lock_is_renewed_when_half_of_it_is_over() -> None:
    held = holding(1, 2)
    held.renew(14.0, 3600.0)
    assert not held.has_pending
    held.settle(PLACE, 2, Outcome.ACCEPT)
    held.renew(16.0, 3600.0)
    acks = held.take_pending()
    assert acks == {PLACE: [AckRange(1, 1, Outcome.RENEW), AckRange(2, 2, Outcome.ACCEPT)]}
    assert held.answered(PLACE, acks[PLACE], 16.0, is_accepted=True) == []
    assert len(held) == 1
    held.renew(30.0, 3600.0)
    assert not held.has_pending
    held.renew(32.0, 3600.0)
    assert held.has_pending_renewals


def test_a_task_that_is_held_for_too_long_is_not_renewed() -> None:
    held = holding(1)
    held.renew(16.0, 10.0)
    assert not held.has_pending


def test_a_refused_acknowledgement_is_a_lost_lock() -> None:
    held = holding(1, 2)
    held.settle(PLACE, 1, Outcome.ACCEPT)
    acks = held.take_pending()
    assert held.answered(PLACE, acks[PLACE], 1.0, is_accepted=False) == [task(1)]
    assert not held.settle(PLACE, 1, Outcome.ACCEPT)
    assert held.settle(PLACE, 2, Outcome.ACCEPT)


def test_what_is_lost_with_a_connection_is_reported_unless_it_was_to_be_released() -> None:
    held = holding(1, 2, 3)
    held.settle(PLACE, 1, Outcome.RELEASE)
    held.settle(PLACE, 2, Outcome.ACCEPT)
    assert held.lose() == [task(2), task(3)]
    assert len(held) == 0
    assert not held.has_pending


def test_at_the_end_the_rest_is_released() -> None:
    held = holding(1, 2, 3)
    held.settle(PLACE, 2, Outcome.ACCEPT)
    held.settle(PLACE, 3, Outcome.RENEW)
    held.release_rest()
    assert held.take_pending() == {
        PLACE: [AckRange(1, 1, Outcome.RELEASE), AckRange(2, 2, Outcome.ACCEPT), AckRange(3, 3, Outcome.RELEASE)]
    }
