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
# What the last attempt before the deadline has at least.
ATTEMPT_S_MIN = 0.05

monotonic = SystemClock.monotonic


class RetryDeadline:
    def __init__(self, deadline_s: float, *, from_now: bool = False) -> None:
        """With `from_now` the time counts from here, not from the first failure: a first attempt that hangs counts."""
        self.deadline_s = deadline_s
        self._troubled_since: float | None = monotonic() if from_now else None
        self._backoff_s = BACKOFF_FIRST_S

    @property
    def left_s(self) -> float:
        """How long one attempt may take."""
        if self._troubled_since is None:
            return self.deadline_s
        return max(ATTEMPT_S_MIN, self.deadline_s - (monotonic() - self._troubled_since))

    def succeeded(self) -> None:
        self._troubled_since = None
        self._backoff_s = BACKOFF_FIRST_S

    def delay_s(self, error: Retriable) -> float:
        """How long to wait before the next attempt, after this failure; GaveUp if there is none."""
        now = monotonic()
        if self._troubled_since is None:
            self._troubled_since = now
        left_s = self._troubled_since + min(self.deadline_s, error.retry_s_max) - now
        if left_s <= 0:
            if isinstance(error, UnknownTopic):
                raise error
            raise GaveUp(f"{error}; gave up after trying for {self.deadline_s:g} s") from error
        # Spread, so that a hundred tasks of one job do not come back at the same moment.
        delay_s = min(self._backoff_s * uniform(0.5, 1.0), left_s)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        return delay_s

    def wait(self, error: Retriable) -> None:
        wait_readable((), self.delay_s(error))
