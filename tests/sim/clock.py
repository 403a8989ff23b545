"""The clock of one process: the simulation's monotonic time, and wall time that may jump."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from flowstone.ports.clock import Timer

from .loop import SimulatedLoop

EPOCH_MS = 1_700_000_000_000


class ProcessClock:
    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.monotonic: Callable[[], float] = loop.time
        self.jumped_ms = 0

    def time_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.jumped_ms

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer: Timer = self._loop.call_later(max(delay_s, 0.0), callback)
        return timer

    async def sleep(self, delay_s: float) -> None:
        woken = self._loop.create_future()
        self._loop.call_later(delay_s, _wake, woken)
        await woken


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
