"""Counters of observed values, cheap enough for the hot path: whoever watches reads them when asked.

Knows nothing of names, labels or formats: see `broker.exposition` for those.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How many values fell below each of a few bounds, and the sum of all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; a value equal to a bound counts as below it, one above the last is counted too."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
