"""Histograms of observed values that are cheap enough for the hot path; a scrape reads them.

The module knows nothing of names, labels or formats: these belong to `broker/metrics`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values below each of a few bounds, and the sum of all values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Create an empty histogram; `bounds` must ascend.

        A value equal to a bound counts as below it; values above the last bound are counted too.
        """
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
