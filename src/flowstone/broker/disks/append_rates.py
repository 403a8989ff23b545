"""How fast partitions grow, as a moving average over samples of where their logs end.

Nothing is counted while records are appended. Only partitions that somebody asks for are remembered, and only for as
long as they are asked for.
"""

from __future__ import annotations

import math

from flowstone.log.partition.partition_log import LogPosition, PartitionLog

# What was appended so long ago counts for a third of what is appended now.
AVERAGE_S = 60.0
# Two samples closer together than this tell more about one batch than about a rate.
SAMPLE_MIN_S = 1.0


class AppendRate:
    """Of one partition. Pure: it is told the time."""

    def __init__(self, now_s: float) -> None:
        self.bytes_per_s = 0.0
        self._sampled_s = now_s
        self._is_first = True

    def is_due(self, now_s: float) -> bool:
        return now_s - self._sampled_s >= SAMPLE_MIN_S

    def sample(self, appended_bytes: int, now_s: float) -> None:
        """So many bytes were appended since the last sample."""
        elapsed_s = now_s - self._sampled_s
        rate = appended_bytes / elapsed_s
        weight = 1.0 if self._is_first else 1 - math.exp(-elapsed_s / AVERAGE_S)
        self.bytes_per_s += weight * (rate - self.bytes_per_s)
        self._sampled_s, self._is_first = now_s, False


class AppendRates:
    def __init__(self) -> None:
        self._rates: dict[PartitionLog, tuple[LogPosition, AppendRate]] = {}
        self._asked: set[PartitionLog] = set()

    def of(self, log: PartitionLog, now_s: float) -> float:
        """Bytes per second; 0 when the log is asked for for the first time."""
        self._asked.add(log)
        known = self._rates.get(log)
        if known is None:
            self._rates[log] = log.end, AppendRate(now_s)
            return 0
        end, rate = known
        if rate.is_due(now_s):
            rate.sample(log.segments.bytes_between(end, log.end), now_s)
            self._rates[log] = log.end, rate
        return rate.bytes_per_s

    def forget_unasked(self) -> None:
        """Lets go of logs that nobody has asked for since this was last called."""
        for log in self._rates.keys() - self._asked:
            del self._rates[log]
        self._asked.clear()
