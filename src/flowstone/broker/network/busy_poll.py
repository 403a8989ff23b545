"""One client that sends a request, waits for its answer and sends the next: the loop looks out for it.

A loop that sleeps is woken up by each of its requests, which takes as long as a small request does. So while one
connection alone asks, and each request follows within `idle.poll.us` of the answer before, the loop looks again and
again instead of sleeping. Under any other load it sleeps at once, as ever.

Between two looks others may have the processor, the client among them. One that keeps it wants it for something else;
then looking is no use: who looks has had its share when the request comes. A loop that was away for longer than others
in between take has been put aside. Once is nothing; when it comes again soon the loop sleeps for a while, and for
longer if it comes again soon after that.
"""

from __future__ import annotations

from collections.abc import Callable

from flowstone.ports.background import let_others_run

# So many requests in a row make it worth looking out for the next. A pause, the client's or the machine's, leaves a
# share of them: one does not end a long row, two do.
STEPS_MIN, STEPS_KEPT, PAUSE_SHARE = 4, 16, 4
# A look takes a few microseconds. The client and the kernel's threads, in between, take some tens.
PUT_ASIDE_S = 0.0003
REST_MIN_S = 0.01
REST_MAX_S = 1.0
SOON_S = 0.02  # after the last time, or after the rest for it


class LockStep:
    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], monotonic: Callable[[], float], poll_s: float
    ) -> None:
        """`poll_s`: 0 for never."""
        self._call_soon, self._monotonic, self._poll_s = call_soon, monotonic, poll_s
        self._connection: object = None
        self._steps = 0
        self._since = 0.0  # the end of the last request's or answer's handling
        self._looked = self._until = self._put_aside_at = self._rests_until = 0.0
        self._rest_s = REST_MIN_S
        self._is_looking = False

    def asked(self, connection: object, now: float) -> None:
        """Requests of the connection were handled just now."""
        if connection is not self._connection:
            self._connection, self._steps = connection, 0
        elif now - self._since < self._poll_s:
            self._steps = min(self._steps + 1, STEPS_KEPT)
            if self._steps >= STEPS_MIN:
                self._look_out(now)
        else:
            self._steps //= PAUSE_SHARE
        self._since = now

    def answered(self, connection: object, now: float) -> None:
        """Answers that the connection had to wait for were sent just now."""
        if connection is self._connection:
            self._since = now
            if self._steps >= STEPS_MIN:
                self._look_out(now)

    def forget(self, connection: object) -> None:
        if connection is self._connection:
            self._connection, self._steps = None, 0

    def _look_out(self, now: float) -> None:
        self._until = now + self._poll_s
        if not self._is_looking and now >= self._rests_until:
            self._is_looking = True
            self._looked = now
            self._call_soon(self._look)

    def _look(self) -> None:
        """The loop looks for requests, without waiting for any, before it calls this again."""
        let_others_run()
        now = self._monotonic()
        if now - max(self._looked, self._since) > PUT_ASIDE_S:
            self._put_aside(now)
        if now > self._until or now < self._rests_until:
            self._is_looking = False
            return
        self._looked = now
        self._call_soon(self._look)

    def _put_aside(self, now: float) -> None:
        if now - max(self._put_aside_at, self._rests_until) < SOON_S:
            self._rests_until = now + self._rest_s
            self._rest_s = min(2 * self._rest_s, REST_MAX_S)
        else:
            self._rest_s = REST_MIN_S
        self._put_aside_at = now
