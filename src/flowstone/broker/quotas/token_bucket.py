"""A token bucket, by which all quotas are measured: pure, times are arguments.

Kafka measures the rate over a sliding window, and delays a client for as long as it takes for the rate to fall to the
quota: (rate - quota) / quota * window. A bucket that holds what the quota allows in the window gives the same bursts
and the same delays, but is exact for requests that are larger than a sample, which in Kafka exceed the quota.
"""

from __future__ import annotations


class TokenBucket:
    """A bucket of tokens, refilled at a rate up to a limit. Its content may become negative, which is its debt."""

    __slots__ = ("_filled_s", "_tokens")

    def __init__(self, burst: float, now_s: float) -> None:
        self._tokens, self._filled_s = burst, now_s

    def take(self, count: float, quota: float, burst: float, now_s: float, *, may_owe: bool = False) -> bool:
        """Take tokens if the bucket has no debt, or in any case with `may_owe`; return whether they were taken."""
        self._fill(quota, burst, now_s)
        if self._tokens < 0 and not may_owe:
            return False
        self._tokens -= count
        return True

    def delay_s(self, quota: float, burst: float, now_s: float) -> float:
        """Return the seconds until the bucket has no debt."""
        self._fill(quota, burst, now_s)
        return max(-self._tokens / quota, 0.0)

    def _fill(self, quota: float, burst: float, now_s: float) -> None:
        self._tokens = min(self._tokens + (now_s - self._filled_s) * quota, burst)
        self._filled_s = now_s
