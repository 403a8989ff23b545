"""Turns: order, the time slice of one iteration, and a channel's reading in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from flowstone.ports.loops import SLICE_S, ReadingInTurns, Turns


class Loop:
    """A loop that runs one iteration at a time, and a clock that steps advance."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.callbacks: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def iterate(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()

    def work(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def turns(loop: Loop) -> Turns:
    asked: asyncio.AbstractEventLoop = loop  # type: ignore[assignment]
    return Turns(asked, lambda: loop.now_s)


def test_an_iteration_runs_what_fits_into_its_slice_in_order(loop, turns):
    done: list[int] = []
    for number in range(10):
        turns.add(lambda number=number: (done.append(number), loop.work(SLICE_S / 4)))
    counts = []
    while loop.callbacks:
        loop.iterate()
        counts.append(len(done))
    assert done == list(range(10))
    assert counts == [4, 8, 10]


def test_a_step_longer_than_the_slice_runs_alone(loop, turns):
    done: list[int] = []
    for number in range(3):
        turns.add(lambda number=number: (done.append(number), loop.work(5 * SLICE_S)))
    loop.iterate()
    assert done == [0]


def test_a_step_that_fails_does_not_stop_the_others(loop, turns):
    done: list[str] = []
    turns.add(lambda: 1 // 0)
    turns.add(lambda: done.append("second"))
    with pytest.raises(ZeroDivisionError):
        loop.iterate()
    loop.iterate()
    assert done == ["second"]


def test_a_caller_outside_of_a_turn_waits_for_those_that_wait_already(loop, turns):
    assert not turns.is_over
    turns.add(lambda: None)
    assert turns.is_over
    loop.iterate()
    assert not turns.is_over


def test_a_caller_outside_of_a_turn_has_one_slice_an_iteration(loop, turns):
    assert not turns.is_over
    loop.work(SLICE_S)
    assert turns.is_over
    loop.iterate()
    assert not turns.is_over


def test_a_step_may_ask_whether_its_slice_is_used_up(loop, turns):
    told: list[bool] = []
    turns.add(lambda: (told.append(turns.is_over), loop.work(SLICE_S), told.append(turns.is_over)))
    turns.add(lambda: None)
    loop.iterate()
    assert told == [False, True]


def test_reading_waits_for_its_turn_and_is_not_asked_for_meanwhile(loop, turns):
    registered: list[Callable[[], None] | None] = []
    reads: list[str] = []
    reading = ReadingInTurns(registered.append, turns)
    reading.on_readable(lambda: reads.append("read"))
    ready = registered[-1]
    assert ready is not None
    ready()
    assert (registered[-1], reads) == (None, [])
    loop.iterate()
    assert reads == ["read"]
    assert registered[-1] == ready


def test_reading_that_ended_before_its_turn_is_not_called(loop, turns):
    registered: list[Callable[[], None] | None] = []
    reading = ReadingInTurns(registered.append, turns)
    reading.on_readable(lambda: pytest.fail("nobody reads"))
    ready = registered[-1]
    assert ready is not None
    ready()
    reading.on_readable(None)
    loop.iterate()
    assert registered[-1] is None


def test_reading_without_turns_goes_on_where_it_was(turns):
    registered: list[Callable[[], None] | None] = []
    reading = ReadingInTurns(registered.append, turns)
    reading.on_readable(print)
    assert reading.end() == registered.append
    assert registered[-1] is print
