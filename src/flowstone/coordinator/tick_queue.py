"""Runs the ticks of many shards in time slices: often all of them are due in the same moment.

All shards of a broker check the same things at the same intervals, from the same start on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flowstone.ports.clock import Clock

# How long ticks run before the event loop serves others.
SLICE_S = 0.005


class TickQueue:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: deque[Callable[[], None]] = deque()
        self._is_running = False

    def run(self, tick: Callable[[], None]) -> None:
        """Run a tick soon, after those that are due already. It must not raise."""
        self._due.append(tick)
        if not self._is_running:
            self._is_running = True
            self._clock.call_later(0, self._run_due)

    def _run_due(self) -> None:
        ends_s = self._clock.monotonic() + SLICE_S
        while self._due:
            self._due.popleft()()
            if self._due and self._clock.monotonic() >= ends_s:
                self._clock.call_later(0, self._run_due)
                return
        self._is_running = False
