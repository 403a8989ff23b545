"""How fast a broker's logs grow, and when the disk is full if that goes on. Pure: it is told the time.

Only what the logs take counts for the forecast, net of retention and compaction: what other programs do on the same
disk says nothing about tomorrow. Logs shrink in leaps, when retention drops segments, so growth is measured over hours.
There is no forecast from less history than HISTORY_MIN_S, nor for a time much further away than the history is long.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from flowstone.config import GIB, MIB

WINDOW_S = 6 * 3600.0
HISTORY_MIN_S = 30 * 60.0
# Less growth than this over the history is no growth.
GROWN_BYTES_MIN = 16 * MIB
# No forecast is made for longer than so many times the history.
HORIZON_HISTORIES = 24
SAMPLES_MAX = 360

_UNITS = ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))


class _Sample(NamedTuple):
    now_s: float
    logs_bytes: int
    usable_bytes: int


class LogGrowth:
    """Of the logs in one log directory."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def note(self, now_s: float, logs_bytes: int, usable_bytes: int) -> None:
        """The logs take so many bytes now, and so many are free on the disk."""
        samples = self._samples
        if len(samples) > 1 and now_s - samples[-2].now_s < WINDOW_S / SAMPLES_MAX:
            samples.pop()  # so that many samples in a short time do not push out the old ones
        samples.append(_Sample(now_s, logs_bytes, usable_bytes))
        while len(samples) > 2 and now_s - samples[1].now_s >= WINDOW_S:
            samples.popleft()

    @property
    def history_s(self) -> float:
        return self._samples[-1].now_s - self._samples[0].now_s if self._samples else 0.0

    @property
    def is_known(self) -> bool:
        """Whether there is enough history to say anything."""
        return self.history_s >= HISTORY_MIN_S

    @property
    def grown_bytes(self) -> int:
        """By how much the logs have grown over the history; negative where they have shrunk."""
        return self._samples[-1].logs_bytes - self._samples[0].logs_bytes if self._samples else 0

    @property
    def others_bytes(self) -> int:
        """How much other programs have taken of the disk over the history; negative where they have freed some."""
        if not self._samples:
            return 0
        return self._samples[0].usable_bytes - self._samples[-1].usable_bytes - self.grown_bytes

    @property
    def bytes_per_s(self) -> float:
        """How fast the logs grow; 0 while that is not known, and where they hardly grow."""
        if not self.is_known or self.grown_bytes < GROWN_BYTES_MIN:
            return 0.0
        return self.grown_bytes / self.history_s

    def seconds_until_taken(self, free_bytes: int) -> float:
        """Return when the logs will have taken so much more; infinite where there is no forecast to be made."""
        rate = self.bytes_per_s
        if rate <= 0:
            return math.inf
        left_s = max(free_bytes, 0) / rate
        return left_s if left_s <= HORIZON_HISTORIES * self.history_s else math.inf


def size_text(size_bytes: int) -> str:
    """Return a number of bytes as people read it."""
    sign, size_bytes = "-" if size_bytes < 0 else "", abs(size_bytes)
    for size, unit in _UNITS:
        if size_bytes >= size:
            return f"{sign}{size_bytes / size:.1f} {unit}"
    return f"{sign}{size_bytes} B"


def duration_text(seconds: float) -> str:
    """Return a length of time as people read it."""
    return f"{seconds / 3600:.1f} h" if seconds >= 2 * 3600 else f"{seconds / 60:.0f} minutes"
