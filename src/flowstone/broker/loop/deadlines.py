"""Deadlines of many waiting requests with few timers.

A produce may wait for 30 seconds and is answered after a millisecond: a timer for each would be set and cancelled in
vain. Waits of the same length end in the order in which they began, so one queue for each length, with one timer for
its head, is enough. Clients choose the lengths, so they are rounded up to a few thousand different ones: each has a
queue and a timer until the timer fires, even if all its waits were over long before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from flowstone.ports.clock import Clock

# Ended waits leave a queue at its head. Behind a head that has not ended, at most so many of them are kept.
ENDED_KEPT_MAX = 1024


# The longest wait, whatever timeout a client requests.
WAIT_MS_MAX = 60 * 60 * 1000
# Lengths up to each bound are rounded up to multiples of the step.
_STEPS_MS = ((1_000, 1), (60_000, 100), (WAIT_MS_MAX, 10_000))


def rounded_ms(timeout_ms: int) -> int:
    """Return the length of the queue that a wait goes to: the wait's own or a little more, `WAIT_MS_MAX` at most."""
    for bound_ms, step_ms in _STEPS_MS:
        if timeout_ms <= bound_ms:
            return max(-(-timeout_ms // step_ms) * step_ms, 0)
    return WAIT_MS_MAX


class Wait(Protocol):
    @property
    def is_done(self) -> bool: ...

    def timed_out(self) -> None: ...


class Deadlines:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[int, _Queue] = {}

    def add(self, wait: Wait, timeout_ms: int) -> None:
        """Call the wait's `timed_out` after `timeout_ms`, unless the wait is done by then."""
        queue = self._queues.get(timeout_ms)  # clients mostly request the same few lengths, which need no rounding
        if queue is None:
            timeout_ms = rounded_ms(timeout_ms)
            queue = self._queues.get(timeout_ms)
        if queue is None:
            queue = self._queues[timeout_ms] = _Queue()
            self._set_timer(timeout_ms, timeout_ms / 1000)
        waits = queue.waits
        while waits and waits[0][1].is_done:
            waits.popleft()
        if len(waits) >= queue.full_at:
            queue.waits = waits = deque(each for each in waits if not each[1].is_done)
            queue.full_at = 2 * len(waits) + ENDED_KEPT_MAX
        waits.append((self._clock.monotonic() + timeout_ms / 1000, wait))

    def _set_timer(self, timeout_ms: int, delay_s: float) -> None:
        self._clock.call_later(delay_s, lambda: self._look(timeout_ms))

    def _look(self, timeout_ms: int) -> None:
        now = self._clock.monotonic()
        next_due = self._queues[timeout_ms].end(now)
        if next_due is None:
            del self._queues[timeout_ms]
        else:
            self._set_timer(timeout_ms, next_due - now)


@dataclass(slots=True)
class _Queue:
    """Waits of one length, the oldest first, with the times at which they end."""

    waits: deque[tuple[float, Wait]] = field(default_factory=deque)
    full_at: int = ENDED_KEPT_MAX  # the number of waits at which the ended ones are removed

    def end(self, now: float) -> float | None:
        """End the waits that are due; return when the next one is due, or None if none is left."""
        waits = self.waits
        while waits:
            due, wait = waits[0]
            if wait.is_done:
                waits.popleft()
            elif due <= now:
                waits.popleft()
                wait.timed_out()
            else:
                return due
        return None
