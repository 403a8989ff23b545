"""Actions that wait: in their order, once each, and with few timers."""

from __future__ import annotations

from collections.abc import Callable

from flowstone.log.lifecycle.delayed_actions import DelayedActions
from flowstone.ports.clock import SimulatedClock, Timer


class CountingClock(SimulatedClock):
    def __init__(self) -> None:
        super().__init__()
        self.timers_set = 0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers_set += 1
        return super().call_later(delay_s, callback)


def test_each_action_runs_once_when_its_own_delay_is_over() -> None:
    clock, ran = SimulatedClock(), list[str]()
    actions = DelayedActions(clock, lambda action: action())
    actions.add(60_000, lambda: ran.append("first"))
    clock.advance(20)
    actions.add(60_000, lambda: ran.append("second"))
    actions.add(1_000, lambda: ran.append("soon"))
    clock.advance(39.9)
    assert ran == ["soon"]
    clock.advance(0.1)
    assert ran == ["soon", "first"]
    clock.advance(20)
    assert ran == ["soon", "first", "second"]
    assert len(actions) == 0
    clock.advance(600)
    assert ran == ["soon", "first", "second"]


def test_a_thousand_actions_of_one_moment_share_a_timer() -> None:
    clock, ran = CountingClock(), list[int]()
    actions = DelayedActions(clock, lambda action: action())
    for number in range(1_000):
        actions.add(60_000, lambda number=number: ran.append(number))  # type: ignore[misc]
    assert (len(actions), clock.timers_set) == (1_000, 1)
    clock.advance(60)
    assert ran == list(range(1_000))


def test_cleared_actions_never_run_and_later_ones_do() -> None:
    clock, ran = SimulatedClock(), list[str]()
    actions = DelayedActions(clock, lambda action: action())
    actions.add(10, lambda: ran.append("cleared"))
    actions.clear()
    actions.add(10, lambda: ran.append("added after"))
    clock.advance(1)
    assert ran == ["added after"]


def test_an_action_may_add_another_one_with_the_same_delay() -> None:
    clock, ran = SimulatedClock(), list[float]()
    actions = DelayedActions(clock, lambda action: action())

    def again() -> None:
        ran.append(clock.monotonic())
        if len(ran) < 3:
            actions.add(1_000, again)

    actions.add(1_000, again)
    clock.advance(10)
    assert ran == [1.0, 2.0, 3.0]


def test_an_action_that_is_added_after_all_others_have_run_is_run_too() -> None:
    clock, ran = SimulatedClock(), list[str]()
    actions = DelayedActions(clock, lambda action: action())
    actions.add(1_000, lambda: ran.append("first"))
    clock.advance(5)
    actions.add(1_000, lambda: ran.append("second"))
    clock.advance(1)
    assert ran == ["first", "second"]
