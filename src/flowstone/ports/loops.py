"""The event loop: its creation, for the command line and embedding programs, and turns of many connections on it.

A TLS handshake, a message of a login and a piece of a long encrypted response cost up to a millisecond each. A thousand
of them may be ready at once. Without turns, one iteration would run them all, and every other client would wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

# The time slice: what the other clients wait for at most, plus one step.
SLICE_S = 0.001


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop event loop if uvloop is installed, else one of asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Turns:
    """A queue of steps, served in order. At least one step runs in each iteration, so that all progress."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._call_soon, self._monotonic = loop.call_soon, monotonic
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = self._is_running = False
        self._ends_s: float | None = None

    def add(self, step: Callable[[], None]) -> None:
        """Run the step when it is its turn."""
        self._waiting.append(step)
        self._schedule()

    @property
    def is_over(self) -> bool:
        """Return whether a caller must add itself instead of working now: others wait, or the slice is used up.

        A caller outside of a turn begins the slice of this iteration.
        """
        if self._waiting and not self._is_running:
            return True
        if self._ends_s is None:
            self._ends_s = self._monotonic() + SLICE_S
            self._schedule()
            return False
        return self._monotonic() >= self._ends_s

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run)

    def _run(self) -> None:
        waiting, monotonic = self._waiting, self._monotonic
        self._is_scheduled, self._is_running = False, True
        self._ends_s = ends_s = monotonic() + SLICE_S
        try:
            while waiting:
                waiting.popleft()()
                if monotonic() >= ends_s:
                    break
        finally:
            self._is_running, self._ends_s = False, None
            if waiting:
                self._schedule()


class ReadingInTurns:
    """A channel's readability whose callback waits for its turn. `on_readable` has the contract of a channel's."""

    def __init__(self, on_readable: Callable[[Callable[[], None] | None], None], turns: Turns) -> None:
        self._on_readable, self._turns = on_readable, turns
        self._callback: Callable[[], None] | None = None

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._callback = callback
        self._on_readable(None if callback is None else self._ready)

    def end(self) -> Callable[[Callable[[], None] | None], None]:
        """Call back without turns from now on; return the channel's `on_readable`."""
        callback, self._callback = self._callback, None
        if callback is not None:
            self._on_readable(callback)
        return self._on_readable

    def _ready(self) -> None:
        self._on_readable(None)  # or it would be called in each iteration until its turn
        self._turns.add(self._turn)

    def _turn(self) -> None:
        callback = self._callback
        if callback is not None:
            self._on_readable(self._ready)
            callback()
