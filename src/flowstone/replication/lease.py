"""The lease under which a broker leads, which expires unless it is renewed (R7).

A broker that the others take for dead may only be slow: paused, or cut off. They wait for its session to end before
they elect another leader; its lease ends earlier, by its own monotonic clock, so that there is no moment in which two
leaders acknowledge. The broker's membership extends the lease, counting from when the renewal was sent. Without a lease
a leader takes no records and moves no high watermark; what is committed may still be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable


class Lease:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Create a lease that does not hold yet."""
        self._monotonic = monotonic
        self._until = -math.inf
        self._on_regained: list[Callable[[], None]] = []

    @classmethod
    def forever(cls) -> Lease:
        """Return a lease that never expires, for a single broker, which cannot be replaced."""
        lease = cls(lambda: 0.0)
        lease._until = math.inf
        return lease

    @property
    def is_forever(self) -> bool:
        return self._until == math.inf

    def holds(self) -> bool:
        return self._monotonic() < self._until

    @property
    def left_s(self) -> float:
        """Return how long the lease holds unless it is renewed; negative once it has expired."""
        return self._until - self._monotonic()

    def extend(self, until: float) -> None:
        """Extend the lease after a renewal; a renewal that arrives late changes nothing."""
        if until <= self._until:
            return
        was_held = self.holds()
        self._until = until
        if not was_held and self.holds():
            for listener in self._on_regained:
                listener()

    def end(self) -> None:
        """End the lease early: the broker stops, or has learned that it is no longer a member."""
        self._until = -math.inf

    def on_regained(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the lease holds again, so that what waited for it can continue."""
        self._on_regained.append(listener)
