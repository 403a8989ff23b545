import asyncio

from flowstone.ports.clock import SimulatedClock, SystemClock, done_within


def test_a_simulated_clock_stands_still_until_it_is_advanced() -> None:
    clock = SimulatedClock(start_ms=5000)
    assert (clock.time_ms(), clock.monotonic()) == (5000, 0.0)
    clock.advance(1.5)
    assert (clock.time_ms(), clock.monotonic()) == (6500, 1.5)


def test_timers_fire_in_order_at_their_own_time() -> None:
    clock = SimulatedClock()
    fired: list[tuple[str, float]] = []
    clock.call_later(2, lambda: fired.append(("second", clock.monotonic())))
    clock.call_later(1, lambda: fired.append(("first", clock.monotonic())))
    clock.call_later(9, lambda: fired.append(("never", clock.monotonic())))
    clock.advance(5)
    assert fired == [("first", 1.0), ("second", 2.0)]


def test_a_cancelled_timer_does_not_fire() -> None:
    clock = SimulatedClock()
    fired: list[int] = []
    clock.call_later(1, lambda: fired.append(1)).cancel()
    clock.advance(2)
    assert fired == []


def test_a_timer_may_set_another_within_the_same_advance() -> None:
    clock = SimulatedClock()
    fired: list[float] = []

    def again() -> None:
        fired.append(clock.monotonic())
        clock.call_later(1, again)

    clock.call_later(1, again)
    clock.advance(3.5)
    assert fired == [1.0, 2.0, 3.0]


def test_sleeping_ends_when_the_clock_is_advanced() -> None:
    async def main() -> None:
        clock = SimulatedClock()
        sleeper = asyncio.ensure_future(clock.sleep(10))
        await asyncio.sleep(0)
        assert not sleeper.done()
        clock.advance(10)
        await sleeper

    asyncio.run(main())


def test_the_system_clock_calls_back_on_the_running_loop() -> None:
    async def main() -> None:
        clock, called = SystemClock(), asyncio.Event()
        clock.call_later(0.001, called.set)
        await asyncio.wait_for(called.wait(), 5)
        await clock.sleep(0)

    asyncio.run(main())


def test_waiting_ends_when_what_is_waited_for_is_done() -> None:
    async def run() -> bool:
        waited = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(done_within(SimulatedClock(), waited, 5.0))
        await asyncio.sleep(0)
        waited.set_result(None)
        return await waiting

    assert asyncio.run(run())


def test_waiting_ends_at_the_time_limit_and_cancels_nothing() -> None:
    async def run() -> None:
        clock, waited = SimulatedClock(), asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(done_within(clock, waited, 5.0))
        for _ in range(3):
            await asyncio.sleep(0)
        clock.advance(4.9)
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.advance(0.2)
        assert not await waiting
        assert not waited.done()

    asyncio.run(run())
