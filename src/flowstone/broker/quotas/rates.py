"""Rates over a sliding window, as Kafka measures them, and token buckets: pure, times are arguments.

The window has several samples of equal length. A sample begins with the first value after the one before has ended, and
is dropped when it has left the window. The rate is the sum of all samples through the window's length, of which at
least all but one sample are counted as over: what a client does at first counts for that time too, so it may begin with
a burst.
"""

from __future__ import annotations

from collections import deque
from math import inf


class Rate:
    """The sum of recorded values per second."""

    __slots__ = ("_sample_count", "_sample_s", "_samples", "_total", "recorded_s")

    def __init__(self, sample_count: int, sample_s: float) -> None:
        self._sample_count, self._sample_s = sample_count, sample_s
        # The beginning and the sum of each sample.
        self._samples: deque[list[float]] = deque()
        self._total = 0.0
        self.recorded_s = -inf

    def record(self, value: float, now_s: float) -> None:
        self._drop(now_s)
        if not self._samples or now_s >= self._samples[-1][0] + self._sample_s:
            self._samples.append([now_s, 0.0])
        self._samples[-1][1] += value
        self._total += value
        self.recorded_s = now_s

    def window_s(self, now_s: float) -> float:
        """Return the length of the window that the rate is measured over."""
        self._drop(now_s)
        elapsed_s = now_s - self._samples[0][0] if self._samples else 0.0
        missing = self._sample_count - 1 - int(elapsed_s / self._sample_s)
        elapsed_s += max(missing, 0) * self._sample_s
        return elapsed_s or self._sample_s

    def per_second(self, now_s: float) -> float:
        window_s = self.window_s(now_s)
        return self._total / window_s

    def delay_s(self, quota: float, now_s: float) -> float:
        """Return how long nothing may be recorded so that the rate falls to the quota; 0 if it is not above."""
        window_s = self.window_s(now_s)
        return max(self._total / quota - window_s, 0.0)

    def _drop(self, now_s: float) -> None:
        oldest_s = now_s - self._sample_count * self._sample_s
        while self._samples and self._samples[0][0] < oldest_s:
            self._total -= self._samples.popleft()[1]
        if not self._samples:
            self._total = 0.0


class TokenBucket:
    """Tokens that are refilled at a rate, up to a limit. Taking may leave less than none, which is owed."""

    __slots__ = ("_filled_s", "_tokens", "recorded_s")

    def __init__(self, burst: float, now_s: float) -> None:
        self._tokens, self._filled_s = burst, now_s
        self.recorded_s = now_s

    def take(self, count: float, quota: float, burst: float, now_s: float, *, may_owe: bool = False) -> bool:
        """Take tokens if none are owed, or in any case if the taker may owe more; return whether they were taken."""
        self._fill(quota, burst, now_s)
        if self._tokens < 0 and not may_owe:
            return False
        self._tokens -= count
        self.recorded_s = now_s
        return True

    def delay_s(self, quota: float, burst: float, now_s: float) -> float:
        """Return how long it takes until none are owed."""
        self._fill(quota, burst, now_s)
        return max(-self._tokens / quota, 0.0)

    def _fill(self, quota: float, burst: float, now_s: float) -> None:
        self._tokens = min(self._tokens + (now_s - self._filled_s) * quota, burst)
        self._filled_s = now_s
