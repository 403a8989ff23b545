"""How fast a disk fills up, from samples of its free space. Pure: it is told the time.

Free space is what counts, not what is appended: retention and compaction give back, and others write there too. Space
comes back in leaps, when retention drops segments every few minutes; so the trend is taken over a while that has
several of them.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_S = 15 * 60.0
# What happens in less time than this may be a burst, and is no trend.
SPAN_MIN_S = 60.0
SAMPLES_MAX = 200


class FreeSpaceTrend:
    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, usable_bytes: int) -> None:
        samples = self._samples
        if len(samples) > 1 and now_s - samples[-2][0] < WINDOW_S / SAMPLES_MAX:
            samples.pop()  # so that many samples in a short time do not push out the old ones
        samples.append((now_s, usable_bytes))
        while len(samples) > 2 and now_s - samples[1][0] >= WINDOW_S:
            samples.popleft()

    @property
    def filling_bytes_per_s(self) -> float:
        """How much less room there is every second; 0 while that is not known, below it where there is ever more."""
        if not self._samples:
            return 0.0
        (begun_s, before), (ended_s, after) = self._samples[0], self._samples[-1]
        return (before - after) / (ended_s - begun_s) if ended_s - begun_s >= SPAN_MIN_S else 0.0

    def seconds_until(self, floor_bytes: int) -> float:
        """Until no more than this is left at the present rate; infinite if that day never comes."""
        rate = self.filling_bytes_per_s
        if rate <= 0:
            return math.inf
        return max(self._samples[-1][1] - floor_bytes, 0) / rate
