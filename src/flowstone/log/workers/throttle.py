"""A limit on the rate at which bytes are read and written, for a process whose work is not urgent."""

from __future__ import annotations

import threading
from collections.abc import Callable

from flowstone.ports.clock import SystemClock

# A shorter wait costs more than it gives back to other work.
WAIT_MIN_S = 0.01


class Throttle:
    """Waits when bytes come faster than the limit; unused capacity is not saved for later."""

    def __init__(
        self,
        bytes_per_s: float,
        monotonic: Callable[[], float] = SystemClock.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._wait = wait or threading.Event().wait
        self._free_at_s = monotonic()

    def spend(self, size_bytes: int) -> None:
        now_s = self._monotonic()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._bytes_per_s
        if self._free_at_s - now_s >= WAIT_MIN_S:
            self._wait(self._free_at_s - now_s)
