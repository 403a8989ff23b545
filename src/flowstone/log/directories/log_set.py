"""All the logs of one log directory: recovers, creates, deletes, flushes and closes them.

Owns which logs are here, their flusher, housekeeping and cleaner. Runs on the event loop. The order of writes makes
this safe: a deleted partition's checkpointed offsets are gone before its name is used again; the clean-shutdown marker
comes last of all, and goes before anything is appended.

A directory fails as a whole and for good: when a flush fails, or when, after another error, a small file cannot be
written to it either (`doubt`). From then on nothing is written to it, and its logs are as the failure left them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.errors import StorageFault
from flowstone.log.compaction.cleaner import Cleaner
from flowstone.log.compaction.cleaner_process import compactor_for
from flowstone.log.lifecycle.clean_stop_state import describe, encode_clean_state
from flowstone.log.lifecycle.directory_identity import LogDirectory
from flowstone.log.lifecycle.directory_recovery import DirectoryRecovery
from flowstone.log.lifecycle.durable_extents import Extent, LogExtents
from flowstone.log.lifecycle.extent_witnesses import Witnesses, find_missing, read_witnesses
from flowstone.log.lifecycle.flusher import Flusher
from flowstone.log.lifecycle.housekeeping import Housekeeping
from flowstone.log.lifecycle.steady_clock import SteadyClock
from flowstone.log.lifecycle.stored_offsets import OfflineLog, StoredOffsets
from flowstone.log.lifecycle.truncator import Truncator
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.branch_point import UNPUBLISHED
from flowstone.log.segments.checkpoints import HIGH_WATERMARK_CHECKPOINT
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import NO_DESCRIPTORS, NO_SPACE, FlushTask, PartitionDirectory
from flowstone.ports.clock import Clock
from flowstone.ports.files import Files
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

CLOSING_LOGS_MAX = 32
PROBE_FILE = ".flowstone-probe"


class DirectoryLogs:
    def __init__(
        self,
        log_directory: LogDirectory,
        clock: Clock,
        steady_clock: SteadyClock,
        config: BrokerConfig,
        handles: FileHandles,
        *,
        on_flushed: Callable[[PartitionLog], None],
        on_fault: Callable[[StorageFault], None],
        high_watermark_of: Callable[[PartitionLog], int],
        decides_retention: Callable[[PartitionLog], bool],
        stamps_records: Callable[[PartitionLog], bool],
        topic_config: Callable[[str], TopicConfig],
    ) -> None:
        """Recover every log in an open directory, waiting for the disk. Raises OSError if that is not possible."""
        self.log_directory = log_directory
        self.path = log_directory.path
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, OfflineLog] = {}
        self.fault: StorageFault | None = None
        self._files, self._clock, self._config, self._handles = log_directory.files, clock, config, handles
        self._on_fault = on_fault
        self._probe: Future[None] | None = None
        self._is_stopped = False
        self.extents = LogExtents(self._files, self.path)
        self._recover(topic_config)
        # Deleted partitions that the checkpoints still name, with the futures that are done when they no longer do.
        self._forgetting: dict[TopicPartition, asyncio.Future[None]] = {}
        # The deletions of this iteration of the event loop.
        self._next_forgetting: asyncio.Future[None] | None = None
        self.flusher = Flusher(
            self._files,
            self.path,
            clock,
            config.num_flush_threads,
            on_flushed=on_flushed,
            on_fault=lambda _log, fault: self.fail(fault),
            on_durable=self.extents.note,
            on_checkpoint_due=self._checkpoint_due,
        )
        self.housekeeping = Housekeeping(
            steady_clock,
            config,
            log_directory,
            self.extents,
            self.flusher,
            self.logs,
            self.offline,
            high_watermark_of,
            decides_retention,
            stamps_records,
        )
        self.housekeeping.on_error = self.doubt
        compactor = compactor_for(self._files)
        self.cleaner = Cleaner(
            steady_clock, config, self.housekeeping, self.logs, high_watermark_of, compactor, self.fail
        )
        self.truncator = Truncator(clock, self.housekeeping, self.flusher)
        for path in log_directory.condemned():
            self.housekeeping.in_background(partial(self._files.remove_tree, path))

    def _recover(self, topic_config: Callable[[str], TopicConfig]) -> None:
        clean = self.was_clean = self.log_directory.take_clean_marker()
        high_watermarks = self.log_directory.read_offsets(HIGH_WATERMARK_CHECKPOINT)
        found_partitions = self.log_directory.partitions()
        if found_partitions and not clean:
            logger.info("the last stop was not clean: recovering %d partitions", len(found_partitions))
        witnesses = read_witnesses(self.log_directory, self.extents, found_partitions, clean=clean)
        recovering = DirectoryRecovery(self._files, self.path, self._handles, self._clock, topic_config, witnesses.left)
        stored = [witnesses.of(each) for each in found_partitions]
        for topic_partition, found in recovering.recover(list(zip(found_partitions, stored, strict=True))):
            if isinstance(found, OfflineLog):
                logger.error("partition %s stays offline: %s", topic_partition, found.fault)
                self.offline[topic_partition] = found
            else:
                found.stored_high_watermark = high_watermarks.get(topic_partition, 0)
                self.logs[topic_partition] = found
        for topic_partition, missing in find_missing(witnesses, self.log_directory, set(found_partitions)):
            logger.error("partition %s stays offline: %s", topic_partition, missing.fault)
            self.offline[topic_partition] = missing
        self._start_extents(witnesses)
        self.log_directory.remove_clean_marker()

    def _start_extents(self, witnesses: Witnesses) -> None:
        """Write the table of extents: the logs' current ends, and for offline logs the last known ones."""
        extents = {
            topic_partition: Extent(log.topic_id, log.log_start_offset, log.recovery_point)
            for topic_partition, log in self.logs.items()
        }
        extents |= {each: witnesses.extents[each] for each in self.offline if each in witnesses.extents}
        self.extents.start(extents)

    def __len__(self) -> int:
        """Return the number of partitions in this directory."""
        return len(self.logs) + len(self.offline)

    def free_bytes(self) -> tuple[int, int]:
        """Return the (usable, total) bytes of its file system. Raises OSError."""
        return self._files.free_bytes(self.path)

    # Logs

    def create(self, topic_partition: TopicPartition, topic_id: bytes, config: TopicConfig) -> PartitionLog:
        """Create an empty log. Nothing is written to disk before its first append."""
        directory = PartitionDirectory(self._files, self.partition_path(topic_partition), exists=False)
        log = PartitionLog(topic_partition, topic_id, config, self._clock, self._handles, directory)
        self.logs[topic_partition] = log
        return log

    def is_taken(self, topic_partition: TopicPartition) -> bool:
        """Return whether a log here has this name, or the checkpoints still contain one that had it."""
        return any(topic_partition in taken for taken in (self.logs, self.offline, self._forgetting))

    def forgetting(self, topic_partition: TopicPartition) -> asyncio.Future[None] | None:
        """Return a future that is done once a deleted partition's name may be used again, or None if it may be now."""
        return self._forgetting.get(topic_partition)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete the log: close it, rename its directory now and remove that after file.delete.delay.ms.

        Raises StorageFault if it cannot be renamed: its name then stays taken, by a log that is offline. If the whole
        directory has failed nothing is renamed: the next start finds that the topic is gone.
        """
        delay_ms = TopicConfig().file_delete_delay_ms
        if (log := self.logs.get(topic_partition)) is not None:
            delay_ms = log.config.file_delete_delay_ms
        path = self._remove(topic_partition, self.log_directory.condemn)
        if path is not None:
            self.housekeeping.remove_tree_later(path, delay_ms)

    async def forget_moved(self, topic_partition: TopicPartition) -> None:
        """Remove a log that has moved to another directory from the checkpoints; return once they do not name it."""
        self.extents.forget(topic_partition)
        self._forget(topic_partition)
        await asyncio.shield(self._forgetting[topic_partition])  # others wait for it too

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Remove the log, and keep its directory under a name that says so. Raises StorageFault as `delete` does."""
        path = self._remove(topic_partition, self.log_directory.set_aside)
        if path is not None:
            logger.error(
                "%s: the metadata log contains neither the topic nor its deletion, so the records are kept in %s. The "
                "end of the metadata log seems to be lost: stop the broker, restore the metadata log, and rename the "
                "directory back",
                topic_partition,
                path,
            )

    def is_published(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition's topic has ever been in the metadata: not if it was being branched or restored.

        Waits for the disk; used while the broker starts.
        """
        return not self._files.exists(f"{self.partition_path(topic_partition)}/{UNPUBLISHED}")

    def note_published(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Record in the background that the topics of branched or restored partitions are in the metadata now."""
        paths = [f"{self.partition_path(each)}/{UNPUBLISHED}" for each in topic_partitions]
        if paths and self.fault is None:
            self.housekeeping.in_background(partial(_remove_files, self._files, paths))

    def _remove(self, topic_partition: TopicPartition, rename: Callable[[str], str]) -> str | None:
        """Remove the log and rename its directory; return the new path, None if there is no directory to rename."""
        log = self.logs.pop(topic_partition, None)
        offline = self.offline.pop(topic_partition, None)
        if log is not None:
            self.flusher.forget(log)
            log.close()
        if self.fault is not None or (offline is None and (log is None or not log.exists)):
            return None
        try:
            path = rename(self.partition_path(topic_partition))
        except FileNotFoundError:
            logger.warning("%s: its directory was removed by another program", topic_partition)
            path = None
        except OSError as error:
            fault = StorageFault(f"{topic_partition} cannot be deleted: {error}")
            self.offline[topic_partition] = offline or _offline_since(log, fault)
            raise fault from error
        self.extents.forget(topic_partition)
        self._forget(topic_partition)
        return path

    def take_offline(self, topic_partition: TopicPartition, fault: StorageFault) -> None:
        """Take a log offline until the next start. Used while the broker starts."""
        log = self.logs.pop(topic_partition, None)
        if log is not None:
            log.close()
            self.offline[topic_partition] = _offline_since(log, fault)

    async def wait_forgotten(self) -> None:
        """Return once no checkpoint names a partition deleted so far, so that their names are free again."""
        if self._forgetting:
            await asyncio.wait(set(self._forgetting.values()))

    def _forget(self, topic_partition: TopicPartition) -> None:
        """Remove a deleted partition from the checkpoints. The deletions of one loop iteration share a write."""
        if self._next_forgetting is None:
            loop = asyncio.get_running_loop()
            self._next_forgetting = loop.create_future()
            loop.call_soon(self._write_forgotten)
        self._forgetting[topic_partition] = self._next_forgetting

    def _write_forgotten(self) -> None:
        forgotten, self._next_forgetting = self._next_forgetting, None
        if forgotten is None or forgotten.cancelled():
            return  # the directory was stopped meanwhile
        written = self.housekeeping.in_background(
            partial(self._files.sync_directory, self.path), self.housekeeping.checkpoint_writer()
        )
        asyncio.wrap_future(written).add_done_callback(partial(self._forgotten, forgotten))

    def _forgotten(self, forgotten: asyncio.Future[None], _: asyncio.Future[None]) -> None:
        for topic_partition in [each for each, future in self._forgetting.items() if future is forgotten]:
            del self._forgetting[topic_partition]
        if not forgotten.done():
            forgotten.set_result(None)

    async def delete_records_before(self, log: PartitionLog, offset: int) -> None:
        """Move the log's start to `offset`, durably. Raises ApiError if the disk is full: the start then moved, but not
        durably.
        """
        log.advance_log_start(offset)
        start = log.log_start_offset
        await self.housekeeping.checkpoint()
        self.housekeeping.drop_segments(log, start)

    # Failing

    def fail(self, fault: StorageFault) -> None:
        """Take the directory offline permanently."""
        if self.fault is None:
            self.fault = fault
            self.housekeeping.suspend()
            self.cleaner.stop()
            self._on_fault(fault)

    def doubt(self, reason: object) -> None:
        """Check the directory after an error: if a small file cannot be written durably, fail the directory."""
        if self.fault is None and self._probe is None and not self._is_stopped:
            loop = asyncio.get_running_loop()
            self._probe = self.housekeeping.submit(self.write_probe)
            self._probe.add_done_callback(lambda probe: loop.call_soon_threadsafe(self._probed, probe, reason))

    def write_probe(self, size_bytes: int = 0) -> None:
        """Write and remove a small file, waiting for the disk. Raises OSError if that is not possible."""
        path = self.log_directory.file(PROBE_FILE)
        self._files.replace(path, bytes(size_bytes))
        self._files.remove(path)

    def _probed(self, probe: Future[None], reason: object) -> None:
        self._probe = None
        error = probe.exception() if not probe.cancelled() else None
        if isinstance(error, OSError) and error.errno not in (*NO_SPACE, *NO_DESCRIPTORS):
            self.fail(StorageFault(f"{self.path}: {reason}; and no other file can be written there: {error}"))

    # The end

    def close(self) -> None:
        """Make all logs durable, waiting for the disk, and write the clean-shutdown marker."""
        self._stop()
        try:
            if self.fault is None:
                self._flush_all()
                self.housekeeping.checkpoint_writer()()
                if not self.offline and not any(log.store.is_torn for log in self.logs.values()):
                    self._write_clean_state()
                    self.log_directory.write_clean_marker()
        except OSError as error:
            logger.error("%s: the stop is not clean, the next start will check the logs: %s", self.path, error)
        finally:
            for log in self.logs.values():
                log.close()
            self.log_directory.close()

    def _write_clean_state(self) -> None:
        """Write the clean-stop state. An error is only logged, because the next start can do without it."""
        try:
            left = ((topic_partition, describe(log)) for topic_partition, log in self.logs.items())
            self.log_directory.write_clean_state(encode_clean_state(left))
        except OSError as error:
            logger.warning(
                "%s: the clean-stop state was not written, so the next start reads every log: %s", self.path, error
            )

    def _flush_all(self) -> None:
        """Flush all logs, some at a time, because each has several files open until it is durable."""
        logs, threads = list(self.logs.values()), self.flusher.thread_count
        with self._files.threads(threads, "closing") as pool:
            for first in range(0, len(logs), CLOSING_LOGS_MAX):
                some = logs[first : first + CLOSING_LOGS_MAX]
                tasks = {log: task for log in some if (task := log.closing_task()) is not None}
                for _done in pool.map(_run_all, [list(tasks.values())[at::threads] for at in range(threads)]):
                    pass
                for log, task in tasks.items():
                    log.durability.flushed(task)
                    log.close()

    def abort(self) -> None:
        """Stop at once, as if the process were killed: without a flush or a clean-shutdown marker."""
        self._stop()
        for log in self.logs.values():
            log.close()
        self.log_directory.close()

    def _stop(self) -> None:
        self._is_stopped = True
        self.flusher.stop()
        for forgotten in self._forgetting.values():
            forgotten.cancel()
        self.cleaner.stop()
        self.housekeeping.stop()

    def _checkpoint_due(self, log: PartitionLog) -> None:
        if self.fault is None:
            self.housekeeping.checkpoint_due(log)

    def partition_path(self, topic_partition: TopicPartition) -> str:
        return f"{self.path}/{topic_partition}"


def _run_all(tasks: Sequence[FlushTask]) -> None:
    for task in tasks:
        task.run()


def _offline_since(log: PartitionLog | None, fault: StorageFault) -> OfflineLog:
    assert log is not None
    stored = StoredOffsets(
        log.recovery_point, log.log_start_offset, clean=False, is_start_known=True, is_end_known=True
    )
    return OfflineLog(log.topic_id, stored, fault)


def _remove_files(files: Files, paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            files.remove(path)
