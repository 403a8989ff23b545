"""Reads every sealed segment from time to time, so that damage is known before a reader meets it.

Owns which segment is read next and what was found. One at a time over all log directories, by a process of its own, no
faster than `log.scrub.bytes.per.second`, and each no sooner than `log.scrub.interval.ms` after the last time. Damage is
logged and counted; the partition stays online, and reads of all but the damaged batch go on. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple, Protocol

from flowstone.config import BrokerConfig
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.scrubbing.check import SegmentToCheck, check_segment
from flowstone.log.segments.segment import Segment
from flowstone.log.workers.process import WorkerProcess
from flowstone.ports.clock import Clock, Timer
from flowstone.ports.files import Files
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

# How often segments that are due are searched for.
LOOK_INTERVAL_S = 60.0
_WORKER = "flowstone.log.scrubbing.worker"


class DamagedSegment(NamedTuple):
    topic_partition: TopicPartition
    path: str
    reason: str


class Checker(Protocol):
    async def check(self, segment: SegmentToCheck) -> str | None:
        """Return what is wrong, or None. Raises OSError if the disk fails, ChildProcessError if the process ended."""
        ...

    async def rest(self) -> None:
        """Free resources: no segment is due for a while."""
        ...

    def stop(self) -> None: ...


class CheckerProcess:
    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._process = WorkerProcess(_WORKER, "log-scrubber")

    async def check(self, segment: SegmentToCheck) -> str | None:
        answer = await self._process.ask({"segment": segment, "bytes_per_s": self._bytes_per_s})
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"])
        damage: str | None = answer["damage"]
        return damage

    async def rest(self) -> None:
        await self._process.rest()

    def stop(self) -> None:
        self._process.stop()


class LocalChecker:
    """A checker in the broker's process, for simulated files, which no other process has."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def check(self, segment: SegmentToCheck) -> str | None:
        return check_segment(self._files.open(segment.path), segment, self._files)

    async def rest(self) -> None:
        pass

    def stop(self) -> None:
        pass


def checker_for(files: Files, bytes_per_s: int) -> Checker:
    return CheckerProcess(bytes_per_s) if isinstance(files, SystemFiles) else LocalChecker(files)


class Scrubber:
    def __init__(
        self,
        clock: Clock,
        config: BrokerConfig,
        logs: Mapping[TopicPartition, PartitionLog],
        checker: Checker,
        on_error: Callable[[PartitionLog, OSError], None],
    ) -> None:
        """Create the scrubber. `logs` is the manager's own; `on_error` is told of a disk that cannot be read."""
        self._clock, self._logs, self._checker, self._on_error = clock, logs, checker, on_error
        self._interval_s = config.log_scrub_interval_ms / 1000
        # when each was last checked, by the monotonic clock
        self._checked: dict[PartitionLog, dict[Segment, float]] = {}
        self._damaged: dict[Segment, DamagedSegment] = {}
        self.checked_bytes = 0
        self._timer: Timer | None = None
        self.task: asyncio.Task[None] | None = None
        if config.log_scrub_bytes_per_second:
            self._schedule()

    @property
    def damaged(self) -> list[DamagedSegment]:
        """Return the segments that were found damaged and still exist."""
        return list(self._damaged.values())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()
        self._checker.stop()

    def _schedule(self) -> None:
        self._timer = self._clock.call_later(LOOK_INTERVAL_S, self._start)

    def _start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.scrub_all())
        self.task.add_done_callback(lambda task: None if task.cancelled() else self._schedule())

    async def scrub_all(self) -> None:
        """Check every segment that is due."""
        self._forget_gone()
        before_bytes, count = self.checked_bytes, 0
        for log in [*self._logs.values()]:
            for segment, to_check in self._due(log):
                if not await self._check(log, segment, to_check):
                    return
                count += 1
        if count:
            told = f"{len(self._damaged)} damaged" if self._damaged else "none damaged"
            logger.info("scrubbed %d segments, %d bytes: %s", count, self.checked_bytes - before_bytes, told)
            await self._checker.rest()

    def _due(self, log: PartitionLog) -> Iterator[tuple[Segment, SegmentToCheck]]:
        """Yield sealed and durable segments, read from the log again for each."""
        if len(log.segments) == 1:
            return
        checked = self._checked.setdefault(log, {})
        for segment, following in pairwise([*log.segments]):
            checked_s = checked.get(segment)
            is_due = checked_s is None or self._clock.monotonic() - checked_s >= self._interval_s
            if is_due and following.base_offset <= log.recovery_point and self._is_there(log, segment):
                to_check = SegmentToCheck(
                    segment.log.path,
                    segment.base_offset,
                    following.base_offset,
                    segment.size_bytes,
                    segment.transactions.has_file,
                )
                yield segment, to_check

    def _is_there(self, log: PartitionLog, segment: Segment) -> bool:
        """Return False if the topic was deleted, or retention or compaction has removed the segment."""
        return self._logs.get(log.topic_partition) is log and segment in log.segments

    async def _check(self, log: PartitionLog, segment: Segment, to_check: SegmentToCheck) -> bool:
        """Check one segment; return whether the checker can continue."""
        reason: str | None = None
        try:
            reason = await self._checker.check(to_check)
        except ChildProcessError as error:
            logger.warning("scrubbing has stopped and continues later: %s", error)
            return False
        except OSError as error:
            reason = f"it cannot be read: {error}"
            if error.errno != errno.ENOENT and self._is_there(log, segment):
                self._on_error(log, error)
        self.checked_bytes += to_check.size_bytes
        if self._is_there(log, segment):  # otherwise another file was read, or none
            self._checked[log][segment] = self._clock.monotonic()
            self._note(log, segment, to_check, reason)
        return True

    def _note(self, log: PartitionLog, segment: Segment, to_check: SegmentToCheck, reason: str | None) -> None:
        if reason is None:
            self._damaged.pop(segment, None)
            return
        if segment not in self._damaged:
            logger.error("%s is damaged: %s; see `flowstone log verify --help`", to_check.path, reason)
        self._damaged[segment] = DamagedSegment(log.topic_partition, to_check.path, reason)

    def _forget_gone(self) -> None:
        for log, checked in [*self._checked.items()]:
            there = {*log.segments} if self._logs.get(log.topic_partition) is log else set()
            for segment in checked.keys() - there:
                del checked[segment]
                self._damaged.pop(segment, None)
            if not checked:
                del self._checked[log]
