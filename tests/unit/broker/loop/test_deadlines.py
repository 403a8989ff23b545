from __future__ import annotations

from collections.abc import Callable

import pytest

from flowstone.broker.loop.deadlines import ENDED_KEPT_MAX, WAIT_MS_MAX, Deadlines, rounded_ms
from flowstone.ports.clock import SimulatedClock, Timer


class CountingClock(SimulatedClock):
    def __init__(self) -> None:
        super().__init__()
        self.timers_set = 0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers_set += 1
        return super().call_later(delay_s, callback)


class Wait:
    def __init__(self, name: str, ended: list[str]) -> None:
        self._name, self._ended = name, ended
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def timed_out(self) -> None:
        self.is_done = True
        self._ended.append(self._name)


def test_waits_end_when_their_time_is_up_whatever_their_length() -> None:
    clock, ended = SimulatedClock(), list[str]()
    deadlines = Deadlines(clock)
    deadlines.add(Wait("long", ended), 2000)
    deadlines.add(Wait("short", ended), 1000)
    clock.advance(0.5)
    deadlines.add(Wait("short, later", ended), 1000)
    clock.advance(0.6)
    assert ended == ["short"]
    clock.advance(0.5)
    assert ended == ["short", "short, later"]
    clock.advance(0.5)
    assert ended == ["short", "short, later", "long"]


@pytest.mark.parametrize(
    ("asked_ms", "waited_ms"),
    [(-5, 0), (0, 0), (1, 1), (999, 999), (1_001, 1_100), (30_000, 30_000), (60_001, 70_000), (2**31 - 1, WAIT_MS_MAX)],
)
def test_a_length_is_rounded_up_by_little(asked_ms: int, waited_ms: int) -> None:
    assert rounded_ms(asked_ms) == waited_ms


def test_lengths_that_clients_make_up_share_a_few_thousand_queues() -> None:
    clock = CountingClock()
    deadlines = Deadlines(clock)
    for timeout_ms in range(0, 2**31, 9_973):
        deadlines.add(Wait("", []), timeout_ms)
    assert clock.timers_set < 2_500


def test_a_wait_that_is_done_hears_nothing() -> None:
    clock, ended = SimulatedClock(), list[str]()
    deadlines = Deadlines(clock)
    first, second = Wait("first", ended), Wait("second", ended)
    deadlines.add(first, 1000)
    deadlines.add(second, 1000)
    first.is_done = True
    clock.advance(2)
    assert ended == ["second"]


def test_a_length_that_nobody_waits_for_any_more_can_be_used_again() -> None:
    clock, ended = SimulatedClock(), list[str]()
    deadlines = Deadlines(clock)
    for round_number in range(3):
        deadlines.add(Wait(f"{round_number}", ended), 100)
        clock.advance(1)
    assert ended == ["0", "1", "2"]


def test_what_is_done_is_not_kept_behind_one_that_is_late() -> None:
    clock, ended = SimulatedClock(), list[str]()
    deadlines = Deadlines(clock)
    late = Wait("late", ended)
    deadlines.add(late, 1000)
    for _ in range(5 * ENDED_KEPT_MAX):
        wait = Wait("answered", ended)
        deadlines.add(wait, 1000)
        wait.is_done = True
    (queue,) = deadlines._queues.values()
    assert len(queue.waits) <= 2 * ENDED_KEPT_MAX
    clock.advance(2)
    assert ended == ["late"]
