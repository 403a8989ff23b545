"""All the logs of one log directory: opening, finding, deleting and closing them.

Owns which logs there are, the flusher and the housekeeping. Runs on the event loop. The order of writes is what
makes it safe: a deleted partition's checkpointed offsets are gone before its name is used again; the clean-shutdown
marker comes last of all, and goes before anything is appended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.errors import StorageFault
from flowstone.log.branches import Branches
from flowstone.log.checkpoints import LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from flowstone.log.cleaner import Cleaner
from flowstone.log.cleaner_process import compactor_for
from flowstone.log.flusher import Flusher
from flowstone.log.handles import FileHandles
from flowstone.log.housekeeping import Housekeeping
from flowstone.log.log_directory import LogDirectory
from flowstone.log.partition_directory import FlushTask, PartitionDirectory
from flowstone.log.partition_log import PartitionLog
from flowstone.log.recovering import Recovering
from flowstone.log.recovery import OfflineLog, StoredOffsets
from flowstone.ports.clock import Clock
from flowstone.ports.files import Files
from flowstone.types import ZERO_UUID, TopicPartition

logger = logging.getLogger(__name__)

CLOSING_LOGS_MAX = 32


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
        self.directory = config.log_dirs
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, OfflineLog] = {}
        self._handles = FileHandles(files, config.log_open_files_max)
        self._log_directory = LogDirectory(files, self.directory)
        self._log_directory.open(config.node_id, cluster_id)
        self.identity = self._log_directory.identity
        self._recover(topic_config)
        # Deleted partitions that the checkpoints still name, and when they do no longer.
        self._forgetting: dict[TopicPartition, asyncio.Future[None]] = {}
        # Of the deletions of this turn of the loop.
        self._forgetting_soon: asyncio.Future[None] | None = None
        self._on_flushed = on_flushed
        self.flusher = Flusher(
            files,
            self.directory,
            clock,
            config.num_flush_threads,
            on_flushed=self._log_flushed,
            on_fault=lambda _log, fault: on_fault(fault),
        )
        self.housekeeping = Housekeeping(
            clock, config, self._log_directory, self.flusher, self.logs, self.offline, high_watermark_of
        )
        self.cleaner = Cleaner(
            clock, config, self.housekeeping, self.logs, high_watermark_of, compactor_for(files), on_fault
        )
        self.branches = Branches(clock, self._log_directory, self._handles, self.housekeeping, self.logs, on_fault)
        for path in self._log_directory.condemned():
            self.housekeeping.in_background(partial(files.remove_tree, path))

    def _recover(self, topic_config: Callable[[str], TopicConfig]) -> None:
        clean = self._log_directory.take_clean_marker()
        recovery_points = self._log_directory.read_offsets(RECOVERY_POINT_CHECKPOINT)
        log_starts = self._log_directory.read_offsets(LOG_START_CHECKPOINT)
        found_partitions = self._log_directory.partitions()
        if found_partitions and not clean:
            logger.info("the last stop was not clean: %d partitions are recovered", len(found_partitions))
        recovering = Recovering(self._files, self.directory, self._handles, self._clock, topic_config)
        stored = [
            StoredOffsets(recovery_points.get(each, 0), log_starts.get(each, 0), clean) for each in found_partitions
        ]
        for topic_partition, found in recovering.recover(list(zip(found_partitions, stored, strict=True))):
            if isinstance(found, OfflineLog):
                logger.error("partition %s stays offline: %s", topic_partition, found.fault)
                self.offline[topic_partition] = found
            else:
                self.logs[topic_partition] = found
        self._log_directory.remove_clean_marker()

    # Logs

    def make_way(self, topic_partition: TopicPartition, topic_id: bytes) -> asyncio.Future[None] | None:
        """None if the topic may use its partition's name now; otherwise it may once the future is done.

        What another topic of that name left is condemned; StorageFault if that fails.
        """
        found = self.logs.get(topic_partition) or self.offline.get(topic_partition)
        if found is not None and found.topic_id not in (topic_id, ZERO_UUID):
            logger.warning("%s: the directory belongs to an earlier topic of that name", topic_partition)
            self.delete(topic_partition)
        return self._forgetting.get(topic_partition)

    def get_or_create(self, topic_partition: TopicPartition, topic_id: bytes, config: TopicConfig) -> PartitionLog:
        """The topic's log, once `make_way` has nothing to wait for; StorageFault if it is offline."""
        assert topic_partition not in self._forgetting, "a crash now would leave another topic's offsets with this log"
        offline = self.offline.get(topic_partition)
        if offline is not None:
            raise offline.fault
        log = self.logs.get(topic_partition)
        if log is not None:
            log.claim(topic_id)
            log.configure(config)
            return log
        directory = PartitionDirectory(self._files, self._partition_path(topic_partition), exists=False)
        log = PartitionLog(topic_partition, topic_id, config, self._clock, self._handles, directory)
        self.logs[topic_partition] = log
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        """The log is gone at once; its directory is renamed now and removed after file.delete.delay.ms.

        StorageFault if it cannot be renamed: then its name stays taken, by a log that is offline.
        """
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
        except FileNotFoundError:
            logger.warning("%s: its directory was removed by somebody else", topic_partition)
            path = None
        except OSError as error:
            fault = StorageFault(f"{topic_partition} cannot be deleted: {error}")
            self.offline[topic_partition] = offline or _offline_since(log, fault)
            raise fault from error
        self._forget(topic_partition)
        if path is not None:
            self.housekeeping.later(delay_ms, partial(self._files.remove_tree, path))

    def delete_strays(self, topic_ids: Container[bytes]) -> None:
        """Condemns what a crash left of deleted topics: every log of a topic that is not among these.

        For the start, when nobody is served yet. A log that does not say whose it is stays.
        """
        owners = {topic_partition: log.topic_id for topic_partition, log in self.logs.items()}
        owners |= {topic_partition: offline.topic_id for topic_partition, offline in self.offline.items()}
        for topic_partition, topic_id in owners.items():
            if topic_id in topic_ids or topic_id == ZERO_UUID:
                continue
            logger.warning("%s: its topic was deleted; the directory goes too", topic_partition)
            try:
                self.delete(topic_partition)
            except StorageFault as fault:
                logger.error("%s", fault)

    def is_free(self, topic_partition: TopicPartition) -> bool:
        """Whether no log has this name, nor will any for whom somebody waits."""
        return not any(topic_partition in taken for taken in (self.logs, self.offline, self._forgetting))

    async def wait_forgotten(self) -> None:
        """Returns once no checkpoint names a partition that has been deleted so far: their names are free again."""
        if self._forgetting:
            await asyncio.wait(set(self._forgetting.values()))

    def _forget(self, topic_partition: TopicPartition) -> None:
        """Has the checkpoints lose a deleted partition. The deletions of one turn of the loop share a write."""
        if self._forgetting_soon is None:
            loop = asyncio.get_running_loop()
            self._forgetting_soon = loop.create_future()
            loop.call_soon(self._write_forgotten)
        self._forgetting[topic_partition] = self._forgetting_soon

    def _write_forgotten(self) -> None:
        forgotten, self._forgetting_soon = self._forgetting_soon, None
        if forgotten is None or forgotten.cancelled():
            return  # stopped meanwhile
        written = self.housekeeping.in_background(
            partial(self._files.sync_directory, self.directory), self.housekeeping.checkpoint_writer()
        )
        asyncio.wrap_future(written).add_done_callback(partial(self._forgotten, forgotten))

    def _forgotten(self, forgotten: asyncio.Future[None], _: asyncio.Future[None]) -> None:
        for topic_partition in [each for each, future in self._forgetting.items() if future is forgotten]:
            del self._forgetting[topic_partition]
        if not forgotten.done():
            forgotten.set_result(None)

    async def delete_records_before(self, log: PartitionLog, offset: int) -> None:
        """The log begins at `offset` from now on, durably. ApiError if the disk is full: then not durably."""
        log.advance_log_start(offset)
        await self.housekeeping.checkpoint()
        self.housekeeping.drop_segments([log])

    async def truncate_to(self, log: PartitionLog, offset: int) -> None:
        """Drops the log's end from `offset` on: first from the recovery point, then from the files."""
        async with log.names_lock:
            log.lower_recovery_point(offset)
            await self.housekeeping.checkpoint()
            log.truncate_to(offset)
        self.flusher.request(log)

    def free_bytes(self) -> tuple[int, int]:
        """(usable, total) bytes of the file system that holds the logs."""
        return self._files.free_bytes(self.directory)

    # The end

    def close(self) -> None:
        """Makes everything durable, waiting for the disk, and says so with the clean-shutdown marker."""
        self._stop()
        try:
            if self.flusher.fault is None:
                self._flush_all()
                self.housekeeping.checkpoint_writer()()
                if not self.offline and not any(log.is_torn for log in self.logs.values()):
                    self._log_directory.write_clean_marker()
        except OSError as error:
            logger.error("%s: the stop is not clean, the next start will check the logs: %s", self.directory, error)
        finally:
            for log in self.logs.values():
                log.close()
            self._log_directory.close()

    def _flush_all(self) -> None:
        """Some logs at a time: each has several files open until it is durable."""
        logs = list(self.logs.values())
        with ThreadPoolExecutor(self._config.num_flush_threads) as pool:
            for first in range(0, len(logs), CLOSING_LOGS_MAX):
                some = logs[first : first + CLOSING_LOGS_MAX]
                tasks = {log: task for log in some if (task := log.closing_task()) is not None}
                for _done in pool.map(FlushTask.run, tasks.values()):
                    pass
                for log, task in tasks.items():
                    log.flushed(task)
                    log.close()

    def abort(self) -> None:
        """Stops at once, as a killed process would: nothing is flushed, nothing is marked."""
        self._stop()
        for log in self.logs.values():
            log.close()
        self._log_directory.close()

    def _stop(self) -> None:
        self.flusher.stop()
        for forgotten in self._forgetting.values():
            forgotten.cancel()
        self.cleaner.stop()
        self.housekeeping.stop()

    def _log_flushed(self, log: PartitionLog) -> None:
        self._on_flushed(log)
        self.housekeeping.log_flushed()

    def _partition_path(self, topic_partition: TopicPartition) -> str:
        return f"{self.directory}/{topic_partition}"


def _offline_since(log: PartitionLog | None, fault: StorageFault) -> OfflineLog:
    assert log is not None
    return OfflineLog(log.topic_id, StoredOffsets(log.recovery_point, log.log_start_offset, clean=False), fault)
