from __future__ import annotations

import asyncio
import time

from flowstone.coordinator.tick_queue import SLICE_S, TickQueue
from flowstone.ports.clock import SystemClock


def test_ticks_that_are_due_together_let_others_in_between_and_keep_their_order() -> None:
    ran: list[int] = []
    seen: list[int] = []

    def tick(number: int) -> None:
        ran.append(number)
        ends_s = time.monotonic() + SLICE_S
        while time.monotonic() < ends_s:
            pass

    async def run() -> None:
        queue = TickQueue(SystemClock())
        for number in range(5):
            queue.run(lambda number=number: tick(number))  # type: ignore[misc]
        while len(ran) < 5:
            await asyncio.sleep(0)
            seen.append(len(ran))

    asyncio.run(run())
    assert ran == [*range(5)]
    assert {1, 2, 3, 4} <= set(seen)


def test_a_tick_that_is_due_while_others_run_is_run_too() -> None:
    ran: list[str] = []

    async def run() -> None:
        queue = TickQueue(SystemClock())
        queue.run(lambda: (ran.append("first"), queue.run(lambda: ran.append("second")))[0])
        while len(ran) < 2:
            await asyncio.sleep(0)
        queue.run(lambda: ran.append("third"))
        while len(ran) < 3:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert ran == ["first", "second", "third"]
