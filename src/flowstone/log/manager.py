"""All the logs of one log directory: opening, finding, deleting and closing them, and what must happen now and then.

Owns which logs there are, the flusher, and a worker thread for what waits for the disk and nobody waits for. Runs on
the event loop. The order of writes is what makes it safe:
- a log's new start is in the checkpoint before its segments go, and the segments' names change before their bytes
  go;
- a deleted partition's checkpointed offsets are gone before its name is used again;
- the clean-shutdown marker comes last of all, and goes before anything is appended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from flowstone.config import MIB, BrokerConfig, TopicConfig
from flowstone.errors import StorageFault
from flowstone.log.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    decode_partition_metadata,
)
from flowstone.log.flusher import Flusher
from flowstone.log.handles import FileHandles
from flowstone.log.log_directory import LogDirectory
from flowstone.log.partition_directory import FlushTask, PartitionDirectory
from flowstone.log.partition_log import PartitionLog
from flowstone.log.reading import NotCached
from flowstone.log.recovery import StoredOffsets, recover
from flowstone.log.retention import SegmentFacts, retained_from
from flowstone.log.segment_index import NO_TIMESTAMP
from flowstone.ports.clock import Clock, Timer
from flowstone.ports.files import Files
from flowstone.types import ZERO_UUID, TopicPartition

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Recovery after a crash reads what was flushed since the last checkpoint: about so much at most.
CHECKPOINT_FLUSHED_BYTES = 256 * MIB


class OfflineLog:
    """A partition's directory that cannot be used; what the checkpoints say of it is kept."""

    def __init__(self, topic_id: bytes, stored: StoredOffsets, fault: StorageFault) -> None:
        self.topic_id = topic_id
        self.stored = stored
        self.fault = fault


class LogManager:
    def __init__(
        self,
        files: Files,
        clock: Clock,
        config: BrokerConfig,
        *,
        on_flushed: Callable[[PartitionLog], None],
        on_fault: Callable[[StorageFault], None],
        high_watermark_of: Callable[[PartitionLog], int],
        cluster_id: str | None = None,
        topic_config: Callable[[str], TopicConfig] = lambda topic: TopicConfig(),
    ) -> None:
        """Opens the directory and recovers every log in it, waiting for the disk. StartupError: it cannot be used."""
        self._files = files
        self._clock = clock
        self._config = config
        self._high_watermark_of = high_watermark_of
        self.directory = config.log_dirs
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, OfflineLog] = {}
        self._handles = FileHandles(files, config.log_open_files_max)
        self._log_directory = LogDirectory(files, self.directory)
        self._log_directory.open(config.node_id, cluster_id)
        self.identity = self._log_directory.identity
        self._recover(topic_config)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="log-keeper")
        self._forgetting: dict[TopicPartition, Future[None]] = {}
        self._timers: dict[str, Timer] = {}
        self._removals: set[Timer] = set()
        self._retention: asyncio.Task[None] | None = None
        self._on_flushed = on_flushed
        self.flusher = Flusher(
            files,
            self.directory,
            clock,
            config.num_flush_threads,
            on_flushed=self._log_flushed,
            on_fault=lambda _log, fault: on_fault(fault),
        )
        for path in self._log_directory.condemned():
            self._in_background(partial(files.remove_tree, path))
        self._write_checkpoints()
        self._start_timer("checkpoint", config.log_flush_offset_checkpoint_interval_ms, self._write_checkpoints)
        self._start_timer("retention", config.log_retention_check_interval_ms, self._start_retention)

    def _recover(self, topic_config: Callable[[str], TopicConfig]) -> None:
        clean = self._log_directory.take_clean_marker()
        recovery_points = self._log_directory.read_offsets(RECOVERY_POINT_CHECKPOINT)
        log_starts = self._log_directory.read_offsets(LOG_START_CHECKPOINT)
        for topic_partition in self._log_directory.partitions():
            stored = StoredOffsets(recovery_points.get(topic_partition, 0), log_starts.get(topic_partition, 0), clean)
            directory = self._partition_directory(topic_partition, exists=True)
            metadata = f"{directory.path}/{PARTITION_METADATA}"
            found = decode_partition_metadata(self._files.read(metadata)) if self._files.exists(metadata) else None
            topic_id = found or ZERO_UUID
            log = self._new_log(topic_partition, topic_id, topic_config(topic_partition.topic), directory)
            try:
                recover(log, directory, self._handles, self._clock, stored)
            except StorageFault as fault:
                logger.error("partition %s stays offline: %s", topic_partition, fault)
                self.offline[topic_partition] = OfflineLog(topic_id, stored, fault)
            else:
                self.logs[topic_partition] = log
        self._log_directory.remove_clean_marker()

    # Logs

    def get_or_create(self, topic_partition: TopicPartition, topic_id: bytes, config: TopicConfig) -> PartitionLog:
        """The topic's log; StorageFault if it is offline. What another topic of that name left is condemned."""
        offline = self.offline.get(topic_partition)
        if offline is not None and offline.topic_id in (topic_id, ZERO_UUID):
            raise offline.fault
        log = self.logs.get(topic_partition)
        if offline is not None or (log is not None and log.topic_id not in (topic_id, ZERO_UUID)):
            logger.warning("%s: the directory belongs to an earlier topic of that name", topic_partition)
            self.delete(topic_partition)
            log = None
        if log is not None:
            log.claim(topic_id)
            log.configure(config)
            return log
        forgetting = self._forgetting.pop(topic_partition, None)
        if forgetting is not None:
            forgetting.result()
        directory = self._partition_directory(topic_partition, exists=False)
        log = self.logs[topic_partition] = self._new_log(topic_partition, topic_id, config, directory)
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        """The log is gone at once; its directory is renamed now and removed after file.delete.delay.ms."""
        log = self.logs.pop(topic_partition, None)
        offline = self.offline.pop(topic_partition, None)
        if log is not None:
            self.flusher.forget(log)
            log.close()
        if offline is None and (log is None or not log.exists):
            return
        delay_ms = log.config.file_delete_delay_ms if log is not None else TopicConfig().file_delete_delay_ms
        try:
            path = self._log_directory.condemn(self._partition_path(topic_partition))
        except OSError as error:
            raise StorageFault(f"{topic_partition} cannot be deleted: {error}") from error
        self._forgetting[topic_partition] = self._in_background(
            partial(self._files.sync_directory, self.directory), self._checkpoint_writer()
        )
        self._later(delay_ms, partial(self._files.remove_tree, path))

    async def delete_records_before(self, log: PartitionLog, offset: int) -> None:
        """The log begins at `offset` from now on, durably."""
        log.advance_log_start(offset)
        await self.checkpoint()
        self._drop_segments([log])

    async def truncate_to(self, log: PartitionLog, offset: int) -> None:
        """Drops the log's end from `offset` on: first from the recovery point, then from the files."""
        log.lower_recovery_point(offset)
        await self.checkpoint()
        log.truncate_to(offset)
        self.flusher.request(log)

    def free_bytes(self) -> tuple[int, int]:
        """(usable, total) bytes of the file system that holds the logs."""
        return self._files.free_bytes(self.directory)

    # Now and then

    async def checkpoint(self) -> None:
        """Puts recovery points, log starts and high watermarks on disk. StorageFault if that fails."""
        try:
            await asyncio.wrap_future(self._worker.submit(self._checkpoint_writer()))
        except OSError as error:
            raise StorageFault(f"{self.directory}: checkpoints cannot be written: {error}") from error

    async def apply_retention(self) -> None:
        """Lets every log lose what is too old or too much, and forget producers that are gone."""
        for log in [log for log in self.logs.values() if log.exists]:
            try:
                await self._advance_start(log, self._clock.time_ms())
            except (StorageFault, OSError) as error:
                logger.error("%s: retention could not be applied: %s", log.topic_partition, error)
        dropping = [log for log in self.logs.values() if log.has_segments_to_drop]
        if not dropping:
            return
        try:
            await self.checkpoint()
        except StorageFault as fault:
            # A full disk must not keep itself full. Where part of the last segment is durable, it tells as much.
            logger.warning("%s", fault)
            dropping = [log for log in dropping if log.recovery_point > log.segments[-1].base_offset]
        self._drop_segments(log for log in dropping if self.logs.get(log.topic_partition) is log)

    async def _advance_start(self, log: PartitionLog, now_ms: int) -> None:
        facts = await self._when_cached(partial(_segment_facts, log))
        start_offset = retained_from(facts, log.config, log.log_start_offset, self._high_watermark_of(log), now_ms)
        if start_offset == log.end.offset and log.segments[-1].size_bytes:
            log.roll()
        log.advance_log_start(start_offset)
        log.producers.expire(now_ms, self._config.producer_id_expiration_ms)

    def _drop_segments(self, logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            try:
                paths = log.drop_segments()
            except OSError as error:
                logger.error("%s: old segments could not be dropped: %s", log.topic_partition, error)
                continue
            if paths:
                self.flusher.request(log)
                self._later(log.config.file_delete_delay_ms, partial(self._remove_files, paths))

    def _remove_files(self, paths: list[str]) -> None:
        for path in paths:
            if self._files.exists(path):  # not if the partition was deleted meanwhile
                self._files.remove(path)

    def _checkpoint_writer(self) -> Callable[[], None]:
        """The offsets as they are now, to be written in a thread."""
        logs = [log for log in self.logs.values() if log.exists]
        recovery_points = {log.topic_partition: log.recovery_point for log in logs}
        log_starts = {log.topic_partition: log.log_start_offset for log in logs}
        high_watermarks = {log.topic_partition: self._high_watermark_of(log) for log in logs}
        for topic_partition, offline in self.offline.items():
            recovery_points[topic_partition] = offline.stored.recovery_point
            log_starts[topic_partition] = offline.stored.log_start_offset

        def write() -> None:
            self._log_directory.write_offsets(LOG_START_CHECKPOINT, log_starts)
            self._log_directory.write_offsets(RECOVERY_POINT_CHECKPOINT, recovery_points)
            self._log_directory.write_offsets(HIGH_WATERMARK_CHECKPOINT, high_watermarks)

        return write

    def _write_checkpoints(self) -> None:
        self.flusher.flushed_bytes = 0
        self._in_background(self._checkpoint_writer())

    def _log_flushed(self, log: PartitionLog) -> None:
        self._on_flushed(log)
        if self.flusher.flushed_bytes >= CHECKPOINT_FLUSHED_BYTES:
            self._write_checkpoints()

    def _start_retention(self) -> None:
        if self._retention is None or self._retention.done():
            self._retention = asyncio.get_running_loop().create_task(self.apply_retention())

    async def _when_cached(self, read: Callable[[], T]) -> T:
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

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """In the worker thread, after a while; if the broker stops before, the next start does it."""

        def fire() -> None:
            self._removals.discard(timer)
            self._in_background(action)

        timer = self._clock.call_later(delay_ms / 1000, fire)
        self._removals.add(timer)

    def _in_background(self, *actions: Callable[[], None]) -> Future[None]:
        def run() -> None:
            try:
                for action in actions:
                    action()
            except OSError as error:
                logger.error("%s: %s", self.directory, error)

        return self._worker.submit(run)

    # The end

    def close(self) -> None:
        """Makes everything durable, waiting for the disk, and says so with the clean-shutdown marker."""
        self._stop()
        try:
            if self.flusher.fault is None and not self.offline:
                self._flush_all()
                self._checkpoint_writer()()
                self._log_directory.write_clean_marker()
        except OSError as error:
            logger.error("%s: the stop is not clean, the next start will check the logs: %s", self.directory, error)
        finally:
            for log in self.logs.values():
                log.close()
            self._log_directory.close()

    def _flush_all(self) -> None:
        tasks = {log: task for log in self.logs.values() if (task := log.closing_task()) is not None}
        with ThreadPoolExecutor(self._config.num_flush_threads) as pool:
            for _done in pool.map(FlushTask.run, tasks.values()):
                pass
        for log, task in tasks.items():
            log.flushed(task)

    def abort(self) -> None:
        """Stops at once, as a killed process would: nothing is flushed, nothing is marked."""
        self._stop()
        for log in self.logs.values():
            log.close()
        self._log_directory.close()

    def _stop(self) -> None:
        for timer in (*self._timers.values(), *self._removals):
            timer.cancel()
        if self._retention is not None:
            self._retention.cancel()
        self.flusher.stop()
        self._worker.shutdown()

    def _partition_path(self, topic_partition: TopicPartition) -> str:
        return f"{self.directory}/{topic_partition}"

    def _partition_directory(self, topic_partition: TopicPartition, *, exists: bool) -> PartitionDirectory:
        return PartitionDirectory(self._files, self._partition_path(topic_partition), exists=exists)

    def _new_log(
        self, topic_partition: TopicPartition, topic_id: bytes, config: TopicConfig, directory: PartitionDirectory
    ) -> PartitionLog:
        return PartitionLog(topic_partition, topic_id, config, self._clock, self._handles, directory)


def _segment_facts(log: PartitionLog) -> list[SegmentFacts]:
    segments = log.segments
    ends = [*(segment.base_offset for segment in segments[1:]), log.end.offset]
    facts = []
    for segment, end in zip(segments, ends, strict=True):
        newest_ms = segment.latest_timestamp() if segment.size_bytes else NO_TIMESTAMP
        facts.append(SegmentFacts(end, segment.size_bytes, newest_ms if newest_ms >= 0 else segment.created_ms))
    return facts
