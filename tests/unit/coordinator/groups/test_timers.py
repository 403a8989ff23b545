from __future__ import annotations

import random

from flowstone.coordinator.groups.timers import STALE_ENTRIES_KEPT_MAX, Timer, TimerKind, Timers

A, B, C = (Timer(TimerKind.SESSION, "g", name) for name in "abc")


def test_due_timers_come_earliest_first_and_once() -> None:
    timers = Timers()
    timers.schedule(A, 30)
    timers.schedule(B, 10)
    timers.schedule(C, 40)
    assert timers.take_due(30) == [B, A]
    assert timers.take_due(30) == []
    assert timers.next_deadline() == 40


def test_a_timer_moved_later_is_not_due_at_its_first_deadline() -> None:
    timers = Timers()
    timers.schedule(A, 10)
    timers.schedule(A, 50)
    assert timers.next_deadline() == 50
    assert timers.take_due(49) == []
    assert timers.take_due(50) == [A]


def test_a_timer_moved_earlier_is_due_once() -> None:
    timers = Timers()
    timers.schedule(A, 50)
    timers.schedule(A, 10)
    assert timers.take_due(10) == [A]
    assert timers.next_deadline() is None


def test_a_cancelled_timer_is_not_due_and_can_be_scheduled_again() -> None:
    timers = Timers()
    timers.schedule(A, 10)
    timers.cancel(A)
    assert timers.next_deadline() is None
    timers.schedule(A, 20)
    assert timers.take_due(100) == [A]


def test_timers_that_come_and_go_are_not_remembered_until_their_deadlines() -> None:
    timers = Timers()
    timers.schedule(A, 10)  # stays, and is due before all others
    for number in range(10_000):
        member = Timer(TimerKind.SESSION, "g", str(number))
        timers.schedule(member, 300_000)
        timers.schedule(member, 30_000)
        timers.cancel(member)
    assert len(timers) == 1
    assert timers.entry_count <= STALE_ENTRIES_KEPT_MAX + 3
    assert timers.next_deadline() == 10


def test_a_heap_that_is_built_anew_keeps_every_live_timer() -> None:
    timers = Timers()
    members = [Timer(TimerKind.SESSION, "g", str(number)) for number in range(1_000)]
    for at, member in enumerate(members):
        timers.schedule(member, at)
    for member in members[::2]:
        timers.cancel(member)
    for member in members[1:800:2]:
        timers.cancel(member)
    assert timers.take_due(1_000) == members[801::2]
    assert (len(timers), timers.entry_count) == (0, 0)


def test_timers_agree_with_a_plain_dictionary() -> None:
    rng = random.Random(1)
    timers, model = Timers(), dict[Timer, int]()
    now_ms = 0
    for _ in range(5_000):
        timer = rng.choice((A, B, C))
        if rng.random() < 0.6:
            model[timer] = now_ms + rng.randint(0, 20)
            timers.schedule(timer, model[timer])
        elif rng.random() < 0.5:
            model.pop(timer, None)
            timers.cancel(timer)
        else:
            now_ms += rng.randint(0, 8)
            due = {each for each, deadline_ms in model.items() if deadline_ms <= now_ms}
            assert set(timers.take_due(now_ms)) == due
            model = {each: deadline_ms for each, deadline_ms in model.items() if each not in due}
        assert timers.next_deadline() == min(model.values(), default=None)
