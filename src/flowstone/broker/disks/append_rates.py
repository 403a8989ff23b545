"""Append rates of partitions: a moving average over samples of their log ends in bytes.

Appends themselves count nothing. Only partitions whose rate is read are tracked, for as long as it is read.
"""

from __future__ import annotations

import math

from flowstone.log.partition.partition_log import LogPosition, PartitionLog

# The time constant of the average: bytes appended so long ago weigh about a third of bytes appended now.
AVERAGE_S = 60.0
# Samples closer together than this would show single batches, not a rate.
SAMPLE_MIN_S = 1.0


class AppendRate:
    """The append rate of one partition. Pure: the time is an argument."""

    def __init__(self, now_s: float) -> None:
        self.bytes_per_s = 0.0
        self._sampled_s = now_s
        self._is_first = True

    def is_due(self, now_s: float) -> bool:
        return now_s - self._sampled_s >= SAMPLE_MIN_S

    def sample(self, appended_bytes: int, now_s: float) -> None:
        """Add the number of bytes that were appended since the last sample."""
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
        """Return a log's append rate in bytes per second; 0 on the first call for it."""
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
        """Drop the logs whose rate no caller has read since the last call."""
        for log in self._rates.keys() - self._asked:
            del self._rates[log]
        self._asked.clear()
