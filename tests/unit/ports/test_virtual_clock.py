from __future__ import annotations

import asyncio
import time

import pytest

from flowstone.ports.clock import VirtualClock

DAY_MS = 24 * 60 * 60 * 1000


def test_it_is_the_machines_time_until_it_is_advanced() -> None:
    assert abs(VirtualClock().time_ms() - time.time() * 1000) < 1000


def test_both_of_its_times_leap_together() -> None:
    async def scenario() -> tuple[int, float]:
        clock = VirtualClock()
        wall_ms, monotonic = clock.time_ms(), clock.monotonic()
        await clock.advance(7 * DAY_MS)
        return clock.time_ms() - wall_ms, clock.monotonic() - monotonic

    leapt_ms, leapt_s = asyncio.run(scenario())
    assert leapt_ms == pytest.approx(7 * DAY_MS, abs=1000)
    assert leapt_s == pytest.approx(7 * DAY_MS / 1000, abs=1)


def test_timers_that_became_due_run_once_in_order_at_the_new_time() -> None:
    async def scenario() -> list[str]:
        clock, ran = VirtualClock(), list[str]()
        begun = clock.monotonic()
        for delay_s in (30, 10, 20, 61):
            clock.call_later(
                delay_s, lambda delay_s=delay_s: ran.append(f"{delay_s} at {clock.monotonic() - begun:.0f}")
            )
        await clock.advance(60_000)
        return ran

    assert asyncio.run(scenario()) == ["10 at 60", "20 at 60", "30 at 60"]


def test_a_timer_that_another_one_cancels_does_not_run() -> None:
    async def scenario() -> list[str]:
        clock, ran = VirtualClock(), list[str]()
        second = clock.call_later(2, lambda: ran.append("second"))
        clock.call_later(1, second.cancel)
        await clock.advance(5000)
        return ran

    assert asyncio.run(scenario()) == []


def test_a_timer_left_over_runs_when_the_rest_of_its_time_is_up() -> None:
    async def scenario() -> float:
        clock, done = VirtualClock(), asyncio.Event()
        begun = time.monotonic()
        clock.call_later(60, done.set)
        await clock.advance(59_980)
        await done.wait()
        return time.monotonic() - begun

    assert asyncio.run(scenario()) < 10


def test_time_goes_on_by_itself() -> None:
    async def scenario() -> None:
        await VirtualClock(advanced_ms=DAY_MS).sleep(0.001)

    asyncio.run(scenario())


def test_whoever_sleeps_is_woken_by_a_leap() -> None:
    async def scenario() -> bool:
        clock = VirtualClock()
        sleeping = asyncio.ensure_future(clock.sleep(3600))
        await asyncio.sleep(0)
        await clock.advance(3_600_000)
        await asyncio.wait_for(sleeping, 5)
        return sleeping.done()

    assert asyncio.run(scenario())
