"""Recovers all the logs of a directory one after the other, and makes them durable together, some at a time.

After a clean stop each log is opened as the stop left it, if its state is known (`clean_stop_state`).

After an unclean stop, recovery of one log ends with its files and names being synced. With ten thousand logs that is
nearly all of the time a start takes, and a disk that is asked for several syncs at once does them in little more time
than one. So the syncs of some logs are deferred and done together, by one syncfs if the log directory is a file system
of its own; a log whose files cannot be synced stays offline.

Waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import chain, islice
from types import MappingProxyType
from typing import NamedTuple

from flowstone.config import TopicConfig
from flowstone.errors import StorageFault
from flowstone.log.lifecycle.clean_stop_state import LeftLog, reopen
from flowstone.log.lifecycle.log_recovery import recover
from flowstone.log.lifecycle.stored_offsets import OfflineLog, StoredOffsets
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.checkpoints import PARTITION_METADATA, decode_partition_metadata
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import FlushTask, LogPosition, PartitionDirectory
from flowstone.ports.clock import Clock
from flowstone.ports.files import File, Files
from flowstone.types import ZERO_UUID, TopicPartition

# The most logs whose recovery is not yet durable: each has several files open until then.
LOGS_AT_ONCE = 32
SYNC_THREADS = 8
SYNCFS_LOGS = 1024  # logs that share a syncfs, for which no files stay open

Recovered = PartitionLog | OfflineLog


class RecoveredDirectory(PartitionDirectory):
    """A log whose final sync, if it needs one, is deferred."""

    put_off: FlushTask | None = None
    is_recovering = True

    def take(self, end: LogPosition, generation: int, active: File) -> FlushTask:
        task = super().take(end, generation, active)
        if not self.is_recovering:
            return task
        assert self.put_off is None
        self.put_off = task
        return task._replace(unsynced=(), replacements=(), removals=(), directories=())


class _FoundLog(NamedTuple):
    topic_partition: TopicPartition
    stored: StoredOffsets
    directory: RecoveredDirectory
    log: PartitionLog


class DirectoryRecovery:
    def __init__(
        self,
        files: Files,
        path: str,
        handles: FileHandles,
        clock: Clock,
        topic_config: Callable[[str], TopicConfig],
        left: Mapping[TopicPartition, LeftLog] = MappingProxyType({}),
    ) -> None:
        """Create the recovery of a directory. `left` is what the last clean stop stored about the logs."""
        self._left = left
        self._files, self._path = files, path
        self._handles, self._clock = handles, clock
        self._topic_config = topic_config
        self._is_own_filesystem = files.is_own_filesystem(path)

    def recover(
        self, found: Sequence[tuple[TopicPartition, StoredOffsets]]
    ) -> Iterator[tuple[TopicPartition, Recovered]]:
        """Yield each partition with its log, or the reason why it must stay offline, in the order given."""
        remaining = iter(found)
        with self._files.threads(SYNC_THREADS, "recovery") as threads:
            while some := list(islice(remaining, SYNCFS_LOGS if self._is_own_filesystem else LOGS_AT_ONCE)):
                opened = [(topic_partition, self._open(topic_partition, stored)) for topic_partition, stored in some]
                recovering = [each for _, each in opened if isinstance(each, _FoundLog)]
                faults = self._make_durable(recovering, threads if len(found) > LOGS_AT_ONCE else None)
                for topic_partition, each in opened:
                    if isinstance(each, OfflineLog):
                        yield topic_partition, each
                    elif (fault := faults.get(topic_partition)) is not None:
                        yield topic_partition, OfflineLog(each.log.topic_id, each.stored, fault)
                    else:
                        yield topic_partition, each.log

    def _open(self, topic_partition: TopicPartition, stored: StoredOffsets) -> _FoundLog | OfflineLog:
        """Return the log as it is after recovery, with its sync deferred, or why it is offline."""
        directory = RecoveredDirectory(self._files, f"{self._path}/{topic_partition}", exists=True)
        reopened = self._reopen(topic_partition, stored, directory)
        if reopened is not None:
            return _FoundLog(topic_partition, stored, directory, reopened)
        metadata = f"{directory.path}/{PARTITION_METADATA}"
        found = decode_partition_metadata(self._files.read(metadata)) if self._files.exists(metadata) else None
        topic_id, config = found or ZERO_UUID, self._topic_config(topic_partition.topic)
        log = PartitionLog(topic_partition, topic_id, config, self._clock, self._handles, directory)
        try:
            recover(log, directory, self._handles, self._clock, stored)
        except StorageFault as fault:
            return OfflineLog(topic_id, stored, fault)
        directory.is_recovering = False
        if directory.put_off is not None and self._is_own_filesystem:
            directory.put_off = directory.put_off._replace(unsynced=())  # a syncfs needs no open files
        return _FoundLog(topic_partition, stored, directory, log)

    def _reopen(
        self, topic_partition: TopicPartition, stored: StoredOffsets, directory: RecoveredDirectory
    ) -> PartitionLog | None:
        """Return the log as a clean stop left it, or None if its state is unknown or a file has changed since."""
        left = self._left.get(topic_partition)
        if left is None or stored[:3] != (left.end_offset, left.log_start_offset, True):
            return None
        config = self._topic_config(topic_partition.topic)
        log = PartitionLog(topic_partition, left.topic_id, config, self._clock, self._handles, directory)
        if not reopen(log, directory, self._handles, self._clock, left):
            return None
        directory.is_recovering = False
        return log

    def _make_durable(
        self, recovering: Sequence[_FoundLog], threads: Executor | None
    ) -> dict[TopicPartition, StorageFault]:
        """Run the deferred syncs and return the faults. The directory that contains all of them is synced once."""
        loose = [each for each in recovering if each.directory.put_off is not None]
        if not loose:
            return {}
        if self._is_own_filesystem:
            threads = None  # almost nothing remains to be synced for each
        # A thread gets several to sync: handing over each alone would cost more than many of the syncs.
        chunks = [loose[first::SYNC_THREADS] for first in range(min(SYNC_THREADS, len(loose)))]
        loose = list(chain.from_iterable(chunks))
        outcomes = chain.from_iterable((threads.map if threads is not None else map)(self._sync_all, chunks))
        faults = {each.topic_partition: fault for each, fault in zip(loose, outcomes, strict=True) if fault is not None}
        try:
            (self._files.sync_filesystem if self._is_own_filesystem else self._files.sync_directory)(self._path)
        except OSError as error:
            fault = StorageFault(f"{self._path}: {error}")
            faults |= {each.topic_partition: fault for each in loose}
        return faults

    def _sync_all(self, recovering: Sequence[_FoundLog]) -> list[StorageFault | None]:
        return [self._sync(each) for each in recovering]

    def _sync(self, recovering: _FoundLog) -> StorageFault | None:
        """Sync everything of a log except what is done for the whole directory; return the fault, if any."""
        directory = recovering.directory
        task, directory.put_off = directory.put_off, None
        assert task is not None
        try:
            if self._is_own_filesystem:
                task.replace_files()
            else:
                task._replace(directories=tuple(each for each in task.directories if each != self._path)).run()
        except OSError as error:
            return StorageFault(f"{directory.path}: {error}")
        return None
