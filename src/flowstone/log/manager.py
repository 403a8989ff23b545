"""All the logs of a broker, in one or several log directories: finds, creates and deletes them.

Owns in which directory a partition lives: a new one goes where the fewest are. `log_set` owns what happens inside a
directory. A directory that fails takes its logs with it, and the others go on; one that could not be opened at the
start, or is missing, may have any partition that none of the others has, so that such a partition is offline and not
made anew. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections import ChainMap
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from functools import partial

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.errors import StartupError, StorageFault
from flowstone.log.branching.branches import Branches
from flowstone.log.directories.interrupted_moves import settle
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.directories.opened_directories import open_directories
from flowstone.log.directories.replica_moves import ReplicaMoves
from flowstone.log.directories.restored_partitions import StagedLog, install
from flowstone.log.lifecycle.directory_identity import LogDirectory
from flowstone.log.lifecycle.steady_clock import SteadyClock
from flowstone.log.lifecycle.stored_offsets import OfflineLog, StoredOffsets
from flowstone.log.lifecycle.truncator import IsDue, Truncator
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.scrubbing.scrubber import Scrubber, checker_for
from flowstone.log.segments.file_handles import FileHandles
from flowstone.ports.clock import Clock, SimulatedClock, VirtualClock
from flowstone.ports.files import Files
from flowstone.types import ZERO_UUID, TopicPartition

logger = logging.getLogger(__name__)

_Cut = Callable[[Truncator, PartitionLog, int, IsDue], Awaitable[None]]


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
        decides_retention: Callable[[PartitionLog], bool] = lambda log: True,
        stamps_records: Callable[[PartitionLog], bool] = lambda log: False,
        cluster_id: str | None = None,
        topic_config: Callable[[str], TopicConfig] = lambda topic: TopicConfig(),
    ) -> None:
        """Open the directories and recover every log, waiting for the disk. Raises StartupError if none can be used.

        `on_fault` is told of a directory that fails, which stays in `directories` with its fault. `decides_retention`
        says whether this broker leads the partition of a log, `stamps_records` whether timestamps in a log may come
        from this broker's own clock.
        """
        opened = open_directories(files, config.log_directories, config.node_id, cluster_id)
        self.identity, self.is_new = opened.identity, opened.is_new
        self.directories: list[DirectoryLogs] = []
        # The paths of directories that could not be opened, with the reason.
        self.unusable: dict[str, StorageFault] = dict(opened.bad)
        self._clock = clock
        self.steady_clock = _steady_clock(clock, opened.good)
        self._handles = FileHandles(files, config.log_open_files_max)
        for log_directory in opened.good:
            self._open_logs(
                log_directory,
                lambda home: DirectoryLogs(
                    home,
                    clock,
                    self.steady_clock,
                    config,
                    self._handles,
                    on_flushed=on_flushed,
                    on_fault=on_fault,
                    high_watermark_of=high_watermark_of,
                    decides_retention=decides_retention,
                    stamps_records=stamps_records,
                    topic_config=topic_config,
                ),
            )
        if not self.directories:
            raise StartupError("; ".join(map(str, self.unusable.values())))
        # Whether the last stop left nothing to recover: everything that was ever acknowledged is here.
        self.was_clean = all(each.was_clean for each in self.directories) and not self.unusable
        # Partitions that may be in a directory that is missing.
        self._elsewhere: dict[TopicPartition, OfflineLog] = {}
        # Whether a directory that the broker has, or had, is missing.
        self.is_incomplete = bool(opened.missing_ids or self.unusable)
        self.logs: Mapping[TopicPartition, PartitionLog] = ChainMap(*(each.logs for each in self.directories))
        self.offline: Mapping[TopicPartition, OfflineLog] = ChainMap(
            self._elsewhere, *(each.offline for each in self.directories)
        )
        self.moves = ReplicaMoves(clock, self._handles, settle(self.directories))
        self._offline_where_twice()
        self.scrubber = self._new_scrubber(files, config)
        self.branches = Branches(clock, self._handles, self.directory_of)

    def _new_scrubber(self, files: Files, config: BrokerConfig) -> Scrubber:
        checker = checker_for(files, config.log_scrub_bytes_per_second)
        return Scrubber(self._clock, config, self.logs, checker, lambda log, error: self.directory_of(log).doubt(error))

    def _open_logs(self, log_directory: LogDirectory, open_one: Callable[[LogDirectory], DirectoryLogs]) -> None:
        try:
            self.directories.append(open_one(log_directory))
        except OSError as error:
            log_directory.close()
            fault = StorageFault(f"the data directory {log_directory.path} cannot be used: {error}")
            logger.error("%s; its partitions are offline", fault)
            self.unusable[log_directory.path] = fault

    def _offline_where_twice(self) -> None:
        """Take partitions offline that are in two directories under one topic id: which one is a copy is unknown."""
        seen: dict[tuple[TopicPartition, bytes], DirectoryLogs] = {}
        for directory in self.directories:
            for topic_partition, log in list(directory.logs.items()):
                first = seen.setdefault((topic_partition, log.topic_id), directory)
                if first is directory:
                    continue
                fault = StorageFault(f"{topic_partition} is in {first.path} and in {directory.path}: move one away")
                logger.error("partition %s stays offline: %s", topic_partition, fault)
                for each in (first, directory):
                    each.take_offline(topic_partition, fault)

    # Directories

    def directory_of(self, log: PartitionLog) -> DirectoryLogs:
        path = posixpath.dirname(log.path)
        return next(each for each in self.directories if each.path == path)

    @property
    def has_failed(self) -> bool:
        """Return whether no usable directory is left."""
        return all(each.fault is not None for each in self.directories)

    def doubt(self, log: PartitionLog, fault: StorageFault) -> None:
        """Check whether the whole directory of a log that failed has failed."""
        self.directory_of(log).doubt(fault)

    def _home_of(self, topic_partition: TopicPartition) -> DirectoryLogs | None:
        """Return the directory that has the partition, or whose checkpoints still name it."""
        return next((each for each in self.directories if each.is_taken(topic_partition)), None)

    # Logs

    def free_name(self, topic_partition: TopicPartition, topic_id: bytes) -> asyncio.Future[None] | None:
        """Return None if the topic may use its partition's name now, or a future that is done when it may.

        A directory left by an earlier topic of that name is deleted. Raises StorageFault if that fails.
        """
        found = self.logs.get(topic_partition) or self.offline.get(topic_partition)
        if found is not None and found.topic_id not in (topic_id, ZERO_UUID):
            logger.warning("%s: the directory belongs to an earlier topic of that name", topic_partition)
            self.delete(topic_partition)
        home = self._home_of(topic_partition)
        if home is None or home.forgetting(topic_partition) is None:
            return self.moves.ending(topic_partition)
        return home.forgetting(topic_partition)

    def give_up_missing(self, topic_partition: TopicPartition) -> None:
        """Give up a partition whose directory is missing, so that it is fetched again from other brokers."""
        offline = self.offline.get(topic_partition)
        if offline is not None and offline.is_missing:
            logger.warning(
                "%s: the directory is missing; the replica is fetched again from its leader", topic_partition
            )
            self.delete(topic_partition)

    def get_or_create(self, topic_partition: TopicPartition, topic_id: bytes, config: TopicConfig) -> PartitionLog:
        """Return the topic's log, created if missing; call `free_name` first. Raises StorageFault if it is offline."""
        offline = self.offline.get(topic_partition)
        if offline is not None:
            raise offline.fault
        log = self.logs.get(topic_partition)
        if log is not None:
            log.claim(topic_id)
            log.configure(config)
            return log
        assert self.is_free(topic_partition), "a crash now would leave another topic's offsets with this log"
        return self._home_for(topic_partition).create(topic_partition, topic_id, config)

    async def restore(self, staged: Sequence[StagedLog], config: TopicConfig) -> None:
        """Open staged directories as logs, under names that are free: see `restored_partitions.install`."""
        await install(staged, config, self._clock, self._handles)

    def _home_for(self, topic_partition: TopicPartition) -> DirectoryLogs:
        """Return the directory of a partition that is new here."""
        wanted = self.moves.take_wanted(topic_partition)
        return wanted if wanted is not None and wanted.fault is None else self._emptiest()

    def _emptiest(self) -> DirectoryLogs:
        usable = [each for each in self.directories if each.fault is None]
        if not usable:
            raise StorageFault("no data directory is left that can be used")
        return min(usable, key=len)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Delete the log now and its directory later: see `DirectoryLogs.delete`."""
        self._elsewhere.pop(topic_partition, None)
        self.moves.cancel(topic_partition)
        for directory in self.directories:
            directory.delete(topic_partition)

    def delete_strays(self, topic_ids: Container[bytes], deleted_topic_ids: Container[bytes] | None = None) -> None:
        """Delete what a crash left: logs of deleted topics, and of branches and restored topics that are not finished.

        These are the logs of topics that are not among `topic_ids`. One of a topic that was published, and is not among
        `deleted_topic_ids` either, is only renamed, unless these are None. Used while the broker starts and serves no
        requests. A log whose topic id is unknown stays.
        """
        for directory in self.directories:
            owners = {topic_partition: log.topic_id for topic_partition, log in directory.logs.items()}
            owners |= {topic_partition: offline.topic_id for topic_partition, offline in directory.offline.items()}
            for topic_partition, topic_id in owners.items():
                if topic_id in topic_ids or topic_id == ZERO_UUID:
                    continue
                try:
                    if deleted_topic_ids is None or topic_id in deleted_topic_ids:
                        logger.warning("%s: the directory is removed, because its topic was deleted", topic_partition)
                        directory.delete(topic_partition)
                    elif directory.is_published(topic_partition):
                        directory.set_aside(topic_partition)
                    else:
                        logger.warning(
                            "%s: the directory is removed, because its branch or restore was interrupted",
                            topic_partition,
                        )
                        directory.delete(topic_partition)
                except StorageFault as fault:
                    logger.error("%s", fault)
            # A crash may have come between the metadata's record of the topic and this.
            directory.note_published([each for each, log in directory.logs.items() if log.branch_point is not None])

    def note_published(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Record that the metadata has the topic of branched or restored partitions: a start never deletes them now."""
        for directory in self.directories:
            directory.note_published([each for each in topic_partitions if each in directory.logs])

    def expect(self, partitions: Iterable[tuple[TopicPartition, bytes]]) -> None:
        """Record which partitions exist, with their topics' ids, at the start; one that is not here may be in a missing
        directory.

        A partition without an append has no directory; while one is missing, the two cases cannot be told apart.
        """
        if not self.is_incomplete:
            return
        gone = ", ".join(self.unusable) or "one that it had before"
        fault = StorageFault(f"the broker runs without a data directory that may have it: {gone}")
        for topic_partition, topic_id in partitions:
            if self._home_of(topic_partition) is None:
                self._elsewhere[topic_partition] = OfflineLog(topic_id, StoredOffsets(0, 0, clean=False), fault)

    def is_free(self, topic_partition: TopicPartition) -> bool:
        """Return whether no log has this name, and none with it is being deleted."""
        return topic_partition not in self._elsewhere and self._home_of(topic_partition) is None

    async def wait_forgotten(self) -> None:
        """Return once no checkpoint names a partition deleted so far, so that their names are free again."""
        for directory in self.directories:
            await directory.wait_forgotten()

    async def delete_records_before(self, log: PartitionLog, offset: int) -> None:
        """Move the log's start to `offset`, durably.

        Raises ApiError if the disk is full: it moved, but not durably; or if the log is being swapped by a move, whose
        target directory would not know of the new start.
        """
        if log.is_held:
            raise log.held_error()
        await self.directory_of(log).delete_records_before(log, offset)

    async def truncate_to(self, log: PartitionLog, offset: int, is_due: IsDue = lambda: True) -> None:
        """Drop the log from `offset` on: see `truncator`. Raises StorageFault, or ApiError if the disk is full."""
        await self._cut(log, offset, is_due, Truncator.truncate_to)

    async def reset_to(self, log: PartitionLog, offset: int, is_due: IsDue = lambda: True) -> None:
        """Drop the whole log, which continues at `offset`. Raises what `truncate_to` raises."""
        await self._cut(log, offset, is_due, Truncator.reset_to)

    async def _cut(self, log: PartitionLog, offset: int, is_due: IsDue, cut: _Cut) -> None:
        """Cut the log by the truncator of its directory: of another one if the log moved while the cut waited."""
        while True:
            home = self.directory_of(log)
            await cut(home.truncator, log, offset, partial(self._is_cut_due, log, home, is_due))
            if self.directory_of(log) is home:
                return

    def _is_cut_due(self, log: PartitionLog, home: DirectoryLogs, is_due: IsDue) -> bool:
        return self.directory_of(log) is home and is_due()

    # The end

    def close(self) -> None:
        """Make all logs durable, waiting for the disks, and write the clean-shutdown markers."""
        self.moves.stop()
        self.scrubber.stop()
        for directory in self.directories:
            directory.close()

    def abort(self) -> None:
        """Stop at once, as if the process were killed: without a flush or a clean-shutdown marker."""
        self.moves.stop()
        self.scrubber.stop()
        for directory in self.directories:
            directory.abort()


def _steady_clock(clock: Clock, directories: Iterable[LogDirectory]) -> SteadyClock:
    """Return a clock that is compared with when a checkpoint was last written here.

    A test's clock is moved on purpose, also while its broker does not run, so it is believed.
    """
    if isinstance(clock, VirtualClock | SimulatedClock):
        return SteadyClock(clock)
    last = max((time for directory in directories if (time := directory.read_time()) is not None), default=None)
    if last is None:
        return SteadyClock(clock, needs_witness=True)
    return SteadyClock(clock, last.time_ms, needs_witness=not last.is_confirmed)
