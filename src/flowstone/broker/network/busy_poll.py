"""Busy-polling for one client that sends a request, waits for its answer and sends the next.

A loop that sleeps is woken up by each of its requests, which takes as long as a small request does. So while one
connection alone sends requests, and each follows within `idle.poll.us` of the answer before, the loop polls for the
next request instead of sleeping. Under any other load it sleeps at once.

Between two polls the loop yields the processor to other processes, the client among them. If the loop resumes later
than their usual work takes, it was preempted: another process needs the processor, and a polling loop has used up its
scheduling share when the next request comes. A single preemption is ignored. After a second one soon after the first,
the loop stops polling for a backoff time, which doubles if that happens again soon.
"""

from __future__ import annotations

from collections.abc import Callable

from flowstone.ports.background import yield_processor

# The number of requests in a row after which the loop polls for the next one. A pause, of the client or the machine,
# divides the count by PAUSE_SHARE: one pause does not end a long row, two do.
ROW_MIN, ROW_MAX, PAUSE_SHARE = 4, 16, 4
# A poll takes a few microseconds. The client and the kernel's threads, in between, take some tens.
PREEMPTED_S = 0.0003
BACKOFF_MIN_S = 0.01
BACKOFF_MAX_S = 1.0
SOON_S = 0.02  # after the last preemption, or after the backoff that it caused


class BusyPoller:
    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], monotonic: Callable[[], float], poll_s: float
    ) -> None:
        """Create an idle poller. The loop polls for up to `poll_s` after a response; 0 turns polling off."""
        self._call_soon, self._monotonic, self._poll_s = call_soon, monotonic, poll_s
        self._connection: object = None
        self._row = 0
        self._since = 0.0  # the end of the last request's or answer's handling
        self._polled = self._until = self._preempted_at = self._backs_off_until = 0.0
        self._backoff_s = BACKOFF_MIN_S
        self._is_polling = False

    def asked(self, connection: object, now: float) -> None:
        """Record that requests of the connection were just handled."""
        if connection is not self._connection:
            self._connection, self._row = connection, 0
        elif now - self._since < self._poll_s:
            self._row = min(self._row + 1, ROW_MAX)
            if self._row >= ROW_MIN:
                self._start(now)
        else:
            self._row //= PAUSE_SHARE
        self._since = now

    def answered(self, connection: object, now: float) -> None:
        """Record that delayed responses were just sent to the connection."""
        if connection is self._connection:
            self._since = now
            if self._row >= ROW_MIN:
                self._start(now)

    def forget(self, connection: object) -> None:
        """Record that the connection is closed, or does not wait for its answers."""
        if connection is self._connection:
            self._connection, self._row = None, 0

    def _start(self, now: float) -> None:
        self._until = now + self._poll_s
        if not self._is_polling and now >= self._backs_off_until:
            self._is_polling = True
            self._polled = now
            self._call_soon(self._poll)

    def _poll(self) -> None:
        """Yield the processor. The loop polls for requests, without blocking, before it calls this again."""
        yield_processor()
        now = self._monotonic()
        if now - max(self._polled, self._since) > PREEMPTED_S:
            self._note_preemption(now)
        if now > self._until or now < self._backs_off_until:
            self._is_polling = False
            return
        self._polled = now
        self._call_soon(self._poll)

    def _note_preemption(self, now: float) -> None:
        if now - max(self._preempted_at, self._backs_off_until) < SOON_S:
            self._backs_off_until = now + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
        else:
            self._backoff_s = BACKOFF_MIN_S
        self._preempted_at = now
