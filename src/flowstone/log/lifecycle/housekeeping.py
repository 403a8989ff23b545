"""Periodic maintenance of a directory's logs: checkpoints, retention, the removal of files.

Owns the timers, and the worker thread for disk work that no request waits for. Runs on the event loop. The order of
writes makes this safe: a log's new start is in the checkpoint before its segments' names change, and the names change
before the bytes go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.lifecycle.delayed_actions import DelayedActions
from flowstone.log.lifecycle.directory_identity import LogDirectory, TimeCheckpoint
from flowstone.log.lifecycle.durable_extents import LogExtents
from flowstone.log.lifecycle.flusher import CHECKPOINT_FLUSHED_BYTES, Flusher
from flowstone.log.lifecycle.retention import SegmentFacts, retained_from
from flowstone.log.lifecycle.steady_clock import SteadyClock
from flowstone.log.lifecycle.stored_offsets import OfflineLog
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.timestamps import newest_client_timestamp
from flowstone.log.segments.cached_reads import NotCached
from flowstone.log.segments.checkpoints import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from flowstone.log.segments.index_pair import NO_TIMESTAMP
from flowstone.log.segments.partition_directory import NO_SPACE
from flowstone.ports import page_cache
from flowstone.ports.clock import Timer
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Checkpoints are written no more often than this, however many logs begin and segments are sealed.
SOON_INTERVAL_S = 1.0
SOON_TIMER = "soon"
# How long retention examines logs before the event loop serves others.
SLICE_S = 0.005


class Housekeeping:
    def __init__(
        self,
        clock: SteadyClock,
        config: BrokerConfig,
        directory: LogDirectory,
        extents: LogExtents,
        flusher: Flusher,
        logs: Mapping[TopicPartition, PartitionLog],
        offline: Mapping[TopicPartition, OfflineLog],
        high_watermark_of: Callable[[PartitionLog], int],
        decides_retention: Callable[[PartitionLog], bool],
        stamps_records: Callable[[PartitionLog], bool],
    ) -> None:
        """Create the maintenance of one directory. `logs` and `offline` are the manager's own and change during its
        life.

        `decides_retention` says whether this broker leads the log's partition: a follower's log starts where its
        leader's does, whatever the follower's own clock and disk say. `stamps_records` says whether the newest records
        of the log may have timestamps from this broker's own clock, which prove nothing about that clock.
        """
        self._clock = clock
        self._config = config
        self._directory = directory
        self._files = directory.files
        self._extents = extents
        self._flusher = flusher
        self._logs = logs
        self._offline = offline
        self._high_watermark_of, self._decides_retention = high_watermark_of, decides_retention
        self._stamps_records = stamps_records
        self._worker = directory.files.threads(1, "log-keeper")
        self._loop = asyncio.get_running_loop()
        # Called on the loop when background work failed: the disk may have failed.
        self.on_error: Callable[[OSError], None] = lambda error: None
        self._timers: dict[str, Timer] = {}
        self._removals = DelayedActions(clock, self.in_background)
        self._saved_s = -SOON_INTERVAL_S
        self.retention: asyncio.Task[None] | None = None
        # The cleaner offsets as the worker thread last wrote them: most brokers compact nothing, and write nothing.
        self._first_dirty_written = directory.read_offsets(CLEANER_CHECKPOINT)
        for topic_partition, log in logs.items():
            log.first_dirty_offset = self._first_dirty_written.get(topic_partition, 0)
        self.save_offsets()
        self._start_timer("checkpoint", max(1, config.log_flush_offset_checkpoint_interval_ms), self.save_offsets)
        self._start_timer("retention", config.log_retention_check_interval_ms, self._start_retention)

    def configure(self, config: BrokerConfig) -> None:
        """Take over altered settings; intervals keep their length."""
        self._config = config

    def stop(self) -> None:
        """Wait for what the worker thread has begun; delayed actions are left to the next start."""
        self.suspend()
        self._worker.shutdown()

    def suspend(self) -> None:
        """Stop starting work: the directory has failed."""
        for timer in self._timers.values():
            timer.cancel()
        self._removals.clear()
        if self.retention is not None:
            self.retention.cancel()

    async def checkpoint(self) -> None:
        """Write recovery points, log starts and high watermarks to disk.

        Raises ApiError if that fails: the old checkpoints are still there, so the logs stay online. An error other than
        a full disk is reported to `on_error`, which decides whether the directory has failed.
        """
        try:
            await asyncio.wrap_future(self._worker.submit(self.checkpoint_writer()))
        except OSError as error:
            if error.errno not in NO_SPACE:
                self.on_error(error)
            told = f"{self._directory.path}: checkpoints cannot be written: {error}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, told) from error

    async def apply_retention(self) -> None:
        """Apply retention to the logs led here, and forget expired producers of all logs.

        Segments that lie below a log's start are dropped from all logs, also from those that follow.
        """
        logs = [log for log in self._logs.values() if log.exists]
        if self._clock.needs_witness:
            await self._find_newest_record(logs)
        async for log in self._in_slices(logs):
            try:
                await self._advance_start(log)
            except (StorageFault, OSError) as error:
                logger.error("%s: retention could not be applied: %s", log.topic_partition, error)
        # A follower's log may get another start meanwhile, which is not in the checkpoint.
        starts = {log: log.log_start_offset for log in self._logs.values() if log.has_segments_to_drop}
        dropping = [*starts]
        if not starts:
            return
        try:
            await self.checkpoint()
        except ApiError as error:
            # A full disk must not prevent its own cleaning: the new starts are overwritten in place, which takes no
            # space.
            logger.warning("%s", error)
            dropping = [log for log in dropping if log.recovery_point > log.segments.active.base_offset]
            if not await self._save_extents(dropping):
                return
        async for log in self._in_slices(dropping):
            self.drop_segments(log, starts[log])

    async def _in_slices(self, logs: Iterable[PartitionLog]) -> AsyncIterator[PartitionLog]:
        """Yield the logs that still exist when it is their turn; let the event loop serve others in between."""
        ends_s = self._clock.monotonic() + SLICE_S
        for log in logs:
            if self._clock.monotonic() >= ends_s:
                await self._clock.sleep(0)
                ends_s = self._clock.monotonic() + SLICE_S
            if self._is_ours(log):
                yield log

    async def _save_extents(self, logs: Iterable[PartitionLog]) -> bool:
        """Make the logs' starts durable without a checkpoint; return whether that succeeded."""
        self._extents.note(logs)
        try:
            await self.in_thread(self._extents.sync)
        except OSError as error:
            logger.warning("%s: old segments are not removed: %s", self._directory.path, error)
            return False
        return True

    async def _find_newest_record(self, logs: Iterable[PartitionLog]) -> None:
        """Pass the newest timestamp that came from another machine to the steady clock.

        End markers do not count: this broker may have stamped them before it lost its disk.
        """
        newest_ms = NO_TIMESTAMP
        async for log in self._in_slices(logs):
            if not self._stamps_records(log):
                find = partial(newest_client_timestamp, log.segments, log.log_end_offset)
                with suppress(StorageFault, OSError):
                    newest_ms = max(newest_ms, await self.when_cached(find))
        if newest_ms >= 0:
            self._clock.newest_record(newest_ms)

    def _is_ours(self, log: PartitionLog) -> bool:
        """Return False if the log was deleted while something was awaited: another topic may use its names by now."""
        return self._logs.get(log.topic_partition) is log

    async def _advance_start(self, log: PartitionLog) -> None:
        start_offset, now_ms = log.log_start_offset, self._clock.time_ms()
        if self._decides_retention(log):
            facts = await self.when_cached(partial(_segment_facts, log))
            if not self._is_ours(log):
                return
            if log.config.message_timestamp_type == "CreateTime":
                self._clock.appended(facts[-1].newest_ms)
            if self._decides_retention(log):
                high_watermark = self._high_watermark_of(log)
                start_offset = retained_from(facts, log.config, log.log_start_offset, high_watermark, now_ms)
        if start_offset == log.end.offset and log.segments.active.size_bytes:
            log.roll()
        log.advance_log_start(start_offset)
        log.producers.expire(now_ms, self._config.producer_id_expiration_ms)

    def drop_segments(self, log: PartitionLog, start: int) -> None:
        """Drop the log's segments below `start`, which is durable."""
        if not self._is_ours(log):
            return
        try:
            self.remove_later(log, log.drop_segments(start))
        except OSError as error:
            logger.error("%s: old segments could not be removed: %s", log.topic_partition, error)

    def remove_later(self, log: PartitionLog, paths: list[str]) -> None:
        """Remove files that the log has dropped, after file.delete.delay.ms."""
        if paths:
            self._flusher.request(log)
            self.later(log.config.file_delete_delay_ms, partial(self._remove_files, paths))

    def roll(self, log: PartitionLog) -> None:
        """Seal the log's active segment and begin another. Raises OSError."""
        log.roll()
        self._flusher.request(log)

    def flush(self, log: PartitionLog) -> None:
        """Request a flush without waiting for it."""
        self._flusher.request(log)

    def _remove_files(self, paths: list[str]) -> None:
        for path in paths:
            if self._files.exists(path):  # skipped if the partition was deleted meanwhile
                self._let_go(path)
                self._files.remove(path)

    def remove_tree_later(self, path: str, delay_ms: int) -> None:
        """Remove a directory that is no longer used, after a delay."""
        self.later(delay_ms, partial(self._remove_tree, path))

    def _remove_tree(self, path: str) -> None:
        for name in self._files.names(path):
            self._let_go(f"{path}/{name}")
        self._files.remove_tree(path)

    def _let_go(self, path: str) -> None:
        if self._files.has_descriptors:
            page_cache.evict(path)

    def checkpoint_writer(self) -> Callable[[], None]:
        """Return a function that writes the offsets as they are now, for a thread."""
        logs = [log for log in self._logs.values() if log.exists]
        recovery_points = {log.topic_partition: log.recovery_point for log in logs}
        log_starts = {log.topic_partition: log.log_start_offset for log in logs}
        first_dirty = {log.topic_partition: log.first_dirty_offset for log in logs if log.first_dirty_offset}
        high_watermarks = {log.topic_partition: self._high_watermark_of(log) for log in logs}
        for topic_partition, offline in self._offline.items():
            if offline.stored.is_end_known:
                recovery_points[topic_partition] = offline.stored.recovery_point
            if offline.stored.is_start_known:
                log_starts[topic_partition] = offline.stored.log_start_offset
        self._extents.note(logs)

        now = TimeCheckpoint(self._clock.time_ms(), is_confirmed=not self._clock.needs_witness)

        def write() -> None:
            self._directory.write_time(now)
            self._extents.sync()  # the extents are never older than the checkpoints
            self._directory.write_offsets(LOG_START_CHECKPOINT, log_starts)
            self._directory.write_offsets(RECOVERY_POINT_CHECKPOINT, recovery_points)
            self._directory.write_offsets(HIGH_WATERMARK_CHECKPOINT, high_watermarks)
            if first_dirty != self._first_dirty_written:
                self._directory.write_offsets(CLEANER_CHECKPOINT, first_dirty)
                self._first_dirty_written = first_dirty

        return write

    def save_offsets(self) -> None:
        """Write checkpoints in the background."""
        self._flusher.flushed_bytes = 0
        self._saved_s = self._clock.monotonic()
        self.in_background(self.checkpoint_writer())

    def checkpoint_due(self, log: PartitionLog) -> None:
        """Checkpoint if much was flushed since the last time, or soon if the log is new or a segment was sealed.

        Then a start knows of the log even if its directory is gone, and need not check the segment.
        """
        if log.durability.is_checkpoint_due:
            log.durability.is_checkpoint_due = False
            self._save_soon()
        if self._flusher.flushed_bytes >= CHECKPOINT_FLUSHED_BYTES:
            self.save_offsets()

    def _save_soon(self) -> None:
        if SOON_TIMER in self._timers:
            return

        def fire() -> None:
            del self._timers[SOON_TIMER]
            self.save_offsets()

        wait_s = max(self._saved_s + SOON_INTERVAL_S - self._clock.monotonic(), 0)
        self._timers[SOON_TIMER] = self._clock.call_later(wait_s, fire)

    def _start_retention(self) -> None:
        if self.retention is None or self.retention.done():
            self.retention = asyncio.get_running_loop().create_task(self.apply_retention())

    async def when_cached(self, read: Callable[[], T]) -> T:
        """Return what `read` returns, after the worker thread has read the missing bytes into the page cache."""
        while True:
            try:
                return read()
            except NotCached as missing:
                await asyncio.wrap_future(self._worker.submit(missing.warm))

    def _start_timer(self, name: str, interval_ms: int, action: Callable[[], None]) -> None:
        def fire() -> None:
            self._start_timer(name, interval_ms, action)
            action()

        self._timers[name] = self._clock.call_later(interval_ms / 1000, fire)

    async def in_thread(self, action: Callable[[], None]) -> None:
        """Run an action that waits for the disk in the worker thread; its OSError is raised to the caller."""
        await asyncio.wrap_future(self._worker.submit(action))

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run an action in the worker thread after a delay; if the broker stops before, the next start does it."""
        self._removals.add(delay_ms, action)

    def in_background(self, *actions: Callable[[], None]) -> Future[None]:
        def run() -> None:
            try:
                for action in actions:
                    action()
            except OSError as error:
                logger.error("%s: %s", self._directory.path, error)
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self.on_error, error)

        return self._worker.submit(run)

    def submit(self, action: Callable[[], T]) -> Future[T]:
        """Run an action in the worker thread; the caller handles the result."""
        return self._worker.submit(action)


def _segment_facts(log: PartitionLog) -> list[SegmentFacts]:
    segments = log.segments
    ends = [*(segment.base_offset for segment in segments[1:]), log.end.offset]
    facts = []
    for segment, end in zip(segments, ends, strict=True):
        newest_ms = segment.latest_timestamp() if segment.size_bytes else NO_TIMESTAMP
        facts.append(SegmentFacts(end, segment.size_bytes, newest_ms if newest_ms >= 0 else segment.created_ms))
    return facts
