"""Forecast of when a disk is full, from the growth of the broker's logs. Pure: the time is an argument.

The forecast counts only the bytes of the logs, net of retention and compaction: the growth of other programs' files on
the same disk does not predict theirs. Logs shrink in steps, when retention deletes segments, so growth is measured over
hours. There is no forecast from less history than HISTORY_MIN_S, nor for a time much further away than the history is
long.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from flowstone.config import GIB, MIB

WINDOW_S = 6 * 3600.0
HISTORY_MIN_S = 30 * 60.0
# Growth below this over the whole history counts as none.
GROWN_BYTES_MIN = 16 * MIB
# A forecast reaches at most so many times the length of the history.
HORIZON_HISTORIES = 24
SAMPLES_MAX = 360

_UNITS = ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))


class _Sample(NamedTuple):
    now_s: float
    logs_bytes: int
    usable_bytes: int


class LogGrowth:
    """The growth of the logs in one log directory."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def note(self, now_s: float, logs_bytes: int, usable_bytes: int) -> None:
        """Add a sample: the bytes that the logs take now, and the bytes that are free on the disk."""
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
        """Return whether the history is long enough for a rate."""
        return self.history_s >= HISTORY_MIN_S

    @property
    def grown_bytes(self) -> int:
        """Return by how many bytes the logs have grown over the history; negative if they have shrunk."""
        return self._samples[-1].logs_bytes - self._samples[0].logs_bytes if self._samples else 0

    @property
    def others_bytes(self) -> int:
        """Return by how many bytes other programs' files have grown over the history; negative if they shrank."""
        if not self._samples:
            return 0
        return self._samples[0].usable_bytes - self._samples[-1].usable_bytes - self.grown_bytes

    @property
    def bytes_per_s(self) -> float:
        """Return how fast the logs grow; 0 while that is unknown, and where they hardly grow."""
        if not self.is_known or self.grown_bytes < GROWN_BYTES_MIN:
            return 0.0
        return self.grown_bytes / self.history_s

    def seconds_until_taken(self, free_bytes: int) -> float:
        """Return the time until the logs have grown by `free_bytes`, or infinity if there is no forecast."""
        rate = self.bytes_per_s
        if rate <= 0:
            return math.inf
        left_s = max(free_bytes, 0) / rate
        return left_s if left_s <= HORIZON_HISTORIES * self.history_s else math.inf


def size_text(size_bytes: int) -> str:
    """Return a number of bytes in a readable unit."""
    sign, size_bytes = "-" if size_bytes < 0 else "", abs(size_bytes)
    for size, unit in _UNITS:
        if size_bytes >= size:
            return f"{sign}{size_bytes / size:.1f} {unit}"
    return f"{sign}{size_bytes} B"


def duration_text(seconds: float) -> str:
    """Return a length of time in a readable unit."""
    return f"{seconds / 3600:.1f} h" if seconds >= 2 * 3600 else f"{seconds / 60:.0f} minutes"
