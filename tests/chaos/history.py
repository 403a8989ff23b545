"""What the clients of a cluster sent, were told and saw, kept for the checker and, line by line, for people.

The house's checker (tests/faults) holds the logs to it; a record that `acks=all` acknowledged is promised whatever
happened since. Here is what a cluster adds: the order in real time, and producers with acks=1, whose records may go
with a leader as long as nobody has seen them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from flowstone.types import TopicPartition
from tests.faults.checker import Anomaly, Fault, History, ObservedLog, Origin, origin_of


class Journal:
    """JSON lines, each with the seconds since its beginning."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._started_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, event: str, **details: object) -> None:
        line = json.dumps({"at_s": round(time.monotonic() - self._started_s, 4), "event": event, **details})
        with self._lock:
            self._file.write(line + "\n")


class _Interval(NamedTuple):
    offset: int
    sent_s: float
    acknowledged_s: float


class ClusterHistory(History):
    """Of one topic. `answered_s` has, for each partition, when the newest acknowledged record was sent."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self.answered_s: dict[TopicPartition, float] = {}
        self._journal = journal
        self._intervals: dict[TopicPartition, list[_Interval]] = {}

    def answer(self, partition: TopicPartition, offset: int | None, origin: Origin, acks: int, sent_s: float) -> None:
        """An acknowledgement, now, of what was sent then."""
        self.acknowledge(partition, offset, origin, acks)
        if offset is not None:
            self._intervals.setdefault(partition, []).append(_Interval(offset, sent_s, time.monotonic()))
        self.answered_s[partition] = max(sent_s, self.answered_s.get(partition, 0.0))
        self._journal.write("acknowledged", partition=str(partition), offset=offset, origin=origin, acks=acks)

    def longest_silence_s(self, since_s: float, until_s: float) -> float:
        """The longest time in which some partition acknowledged nothing."""
        longest_s = 0.0
        for intervals in self._intervals.values():
            next_s = until_s
            for each in reversed(intervals):
                longest_s = max(longest_s, next_s - max(each.acknowledged_s, since_s))
                next_s = each.acknowledged_s
                if next_s < since_s:
                    break
        return longest_s

    def check_cluster(self, logs: Mapping[TopicPartition, ObservedLog]) -> list[Anomaly]:
        """Every anomaly of a topic to which all producers write with acks=all."""
        anomalies = self.check(logs, Fault.POWER_LOSS)
        for partition, intervals in self._intervals.items():
            anomalies += _check_real_time(partition, intervals)
        return anomalies

    def check_leaderly(self, logs: Mapping[TopicPartition, ObservedLog]) -> tuple[list[Anomaly], int]:
        """Those of a topic to which they write with acks=1, and how many acknowledged records are not there."""
        anomalies, lost = [], 0
        found = {
            partition: {offset: origin_of(value) for offset, value in log.records} for partition, log in logs.items()
        }
        for partition, origins in found.items():
            for expected, (offset, origin) in enumerate(origins.items(), logs[partition].log_start_offset):
                if offset != expected:
                    anomalies.append(Anomaly("hole", partition, offset, f"{expected} was due"))
                    break
                if origin is None or origin.sequence >= self.sent.get((partition, origin.producer), 0):
                    anomalies.append(Anomaly("phantom", partition, offset, f"{origin} was never sent"))
        for partition, offset, origin in self.seen:
            if found[partition].get(offset) != origin:
                detail = f"{origin} was seen, {found[partition].get(offset)} is there"
                anomalies.append(Anomaly("taken back", partition, offset, detail))
        for each in self.acknowledged:
            lost += found[each.partition].get(each.offset) != each.origin
        return anomalies, lost


def _check_real_time(partition: TopicPartition, intervals: list[_Interval]) -> list[Anomaly]:
    """What was sent after another record had been acknowledged lies behind it."""
    anomalies = []
    earliest = _Interval(-1, 0.0, float("inf"))  # acknowledged first, of all that lie behind
    for each in sorted(intervals, reverse=True):
        if each.sent_s > earliest.acknowledged_s:
            detail = f"was sent after {earliest.offset} had been acknowledged"
            anomalies.append(Anomaly("real-time order", partition, each.offset, detail))
        if each.acknowledged_s < earliest.acknowledged_s:
            earliest = each
    return anomalies
