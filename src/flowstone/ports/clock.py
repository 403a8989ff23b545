"""Clocks and timers: the only module that reads the time or waits for it.

Wall-clock milliseconds are used for record timestamps and retention; monotonic seconds for durations and deadlines.
Timers belong to the clock instead of the event loop, so that advancing a virtual clock triggers every timeout.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def time_ms(self) -> int:
        """Return the milliseconds since the epoch, as stored in records."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...

    async def sleep(self, delay_s: float) -> None: ...


class SystemClock:
    """The machine's clock and the running event loop's timers."""

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Called several times per request: a Python wrapper would cost too much.
    monotonic = staticmethod(time.monotonic)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


async def done_within(clock: Clock, waited: asyncio.Future[Any], timeout_s: float) -> bool:
    """Wait until `waited` is done, for `timeout_s` at most. Return whether it is done; it is not cancelled if not."""
    timeout = asyncio.ensure_future(clock.sleep(timeout_s))
    try:
        await asyncio.wait((waited, timeout), return_when=asyncio.FIRST_COMPLETED)
    finally:
        timeout.cancel()
    return waited.done()


class VirtualClock:
    """The machine's time plus an offset that `advance` increases.

    After `advance`, every timer that has become due runs once, in order, at the new time, as in a process that was
    suspended for that long. Timers that these start count from the new time. The clock belongs to one event loop; other
    threads may only read it.
    """

    def __init__(self, advanced_ms: int = 0) -> None:
        self.advanced_ms = advanced_ms
        self._timers: set[_VirtualTimer] = set()

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.advanced_ms

    def monotonic(self) -> float:
        return time.monotonic() + self.advanced_ms / 1000

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = _VirtualTimer(self._timers, self.monotonic() + delay_s, callback)
        timer.arm(delay_s)
        return timer

    async def sleep(self, delay_s: float) -> None:
        woken = asyncio.Event()
        self.call_later(delay_s, woken.set)
        await woken.wait()

    async def advance(self, milliseconds: int) -> None:
        """Advance the clock and return when every timer that is due has run."""
        self.advanced_ms += milliseconds
        now = self.monotonic()
        due = []
        for timer in sorted(self._timers, key=attrgetter("due")):
            if timer.due <= now:
                due.append(timer)
            else:
                timer.arm(timer.due - now)
        for timer in due:
            if timer in self._timers:  # a timer that ran before may have cancelled this one
                timer.fire()
                await asyncio.sleep(0)  # what the timer sent is delivered before the next timer runs


class _VirtualTimer:
    __slots__ = ("_callback", "_handle", "_timers", "due")

    def __init__(self, timers: set[_VirtualTimer], due: float, callback: Callable[[], None]) -> None:
        """Create a timer, which `timers`, the clock's set, contains until it has run."""
        self.due = due
        self._timers, self._callback = timers, callback
        self._handle: asyncio.TimerHandle | None = None
        timers.add(self)

    def arm(self, delay_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_later(delay_s, self.fire)

    def cancel(self) -> None:
        self._timers.discard(self)
        if self._handle is not None:
            self._handle.cancel()

    def fire(self) -> None:
        self.cancel()
        self._callback()


class SimulatedClock:
    """A clock that only moves by `advance`, which runs the timers that become due in order."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._elapsed_s = 0.0
        self._timers: list[tuple[float, int, _SimulatedTimer]] = []
        self._order = itertools.count()

    def time_ms(self) -> int:
        return self._start_ms + int(self._elapsed_s * 1000)

    def monotonic(self) -> float:
        return self._elapsed_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = _SimulatedTimer(callback)
        heapq.heappush(self._timers, (self._elapsed_s + max(delay_s, 0.0), next(self._order), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        woken = asyncio.Event()
        self.call_later(delay_s, woken.set)
        await woken.wait()

    def advance(self, seconds: float) -> None:
        end_s = self._elapsed_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            self._elapsed_s, _, timer = heapq.heappop(self._timers)
            timer.fire()
        self._elapsed_s = end_s


class _SimulatedTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        if self._callback is not None:
            self._callback()
