"""The deadline of a call that is retried, and the delays between its attempts.

The time counts from the first failure after the last success: a long read that makes progress never reaches it.
"""

from __future__ import annotations

from random import uniform

from flowstone.client.errors import GaveUp, Retriable, UnknownTopic
from flowstone.ports.clock import SystemClock
from flowstone.ports.network import wait_readable

BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 1.0
# The least time that the last attempt before the deadline has.
ATTEMPT_S_MIN = 0.05

monotonic = SystemClock.monotonic


class RetryDeadline:
    def __init__(self, deadline_s: float, *, from_now: bool = False) -> None:
        """Create a deadline. With `from_now` time counts from here, and not from the first failure."""
        self.deadline_s = deadline_s
        self._troubled_since: float | None = monotonic() if from_now else None
        self._backoff_s = BACKOFF_FIRST_S

    @property
    def left_s(self) -> float:
        """Return how long one attempt may take."""
        if self._troubled_since is None:
            return self.deadline_s
        return max(ATTEMPT_S_MIN, self.deadline_s - (monotonic() - self._troubled_since))

    def succeeded(self) -> None:
        self._troubled_since = None
        self._backoff_s = BACKOFF_FIRST_S

    def delay_s(self, error: Retriable) -> float:
        """Return how long to wait before the next attempt, after this failure. Raises GaveUp if there is none."""
        now = monotonic()
        if self._troubled_since is None:
            self._troubled_since = now
        left_s = self._troubled_since + min(self.deadline_s, error.retry_s_max) - now
        if left_s <= 0:
            if isinstance(error, UnknownTopic):
                raise error
            raise GaveUp(f"{error}; gave up after trying for {self.deadline_s:g} s") from error
        # Randomized, so that a hundred tasks of one job do not retry at the same moment.
        delay_s = min(self._backoff_s * uniform(0.5, 1.0), left_s)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        return delay_s

    def wait(self, error: Retriable) -> None:
        wait_readable((), self.delay_s(error))
