"""Creates branches of logs, from their files to open logs. Runs on the event loop; threads wait for the disk.

The order of writes is what makes it safe. A branch's directories are staged under names that every start removes. When
all of them are durable they get their own names; they say which topic they are of and that it is not published, and
until the metadata knows that topic, a start condemns them. So a crash leaves no branch, or all of it. The
checkpoints have the branch's offsets before anybody can see it: records deleted from the source never come back in it.

A branch's partition is in the log directory of the one it comes from: a link does not reach another file system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.branching.staging import StagedBranch, WantedBranch, discard, stage
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.producer_state import ProducerStates
from flowstone.log.segments.branch_point import BranchPoint
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.log.segments.segment import Segment
from flowstone.ports.clock import Clock
from flowstone.types import TopicPartition


class Branches:
    def __init__(
        self, clock: Clock, handles: FileHandles, directory_of: Callable[[PartitionLog], DirectoryLogs]
    ) -> None:
        self._clock, self._handles, self._directory_of = clock, handles, directory_of

    async def stage(
        self, sources: Sequence[tuple[PartitionLog, int]], target: str, topic_id: bytes
    ) -> list[StagedBranch]:
        """Make the directories of a branch: of each log up to an offset, in the given order.

        A log without a directory needs none in the branch. Raises ApiError, and leaves nothing, if that is not
        possible.
        """
        return await stage(
            [
                WantedBranch(TopicPartition(target, index), topic_id, log, end_offset, self._directory_of(log))
                for index, (log, end_offset) in enumerate(sources)
                if log.exists
            ]
        )

    async def install(self, staged: Sequence[StagedBranch]) -> None:
        """Rename the staged directories, whose final names must be free, and open their logs; return once durable.

        Raises ApiError if that fails: a directory that was renamed is deleted with its log, the others by `discard`.
        """
        homes = {id(each.home): each.home for each in staged}.values()
        try:
            for each in staged:
                assert not each.home.is_taken(each.topic_partition)
                each.plan.source.files.rename(each.path, each.home.partition_path(each.topic_partition))
                each.home.logs[each.topic_partition] = self._open(each)
            for home in homes:
                sync = partial(home.log_directory.files.sync_directory, home.path)
                await home.housekeeping.in_thread(sync)
                await home.housekeeping.checkpoint()
        except OSError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the branch cannot be made: {error}") from error

    def discard(self, staged: Sequence[StagedBranch]) -> None:
        """Remove the directories that were staged and not installed."""
        for each in staged:
            discard(each.home, each.path)

    def _open(self, staged: StagedBranch) -> PartitionLog:
        source, built = staged.plan.source, staged.built
        path = staged.home.partition_path(staged.topic_partition)
        directory = PartitionDirectory(source.files, path, exists=True)
        log = PartitionLog(
            staged.topic_partition, staged.topic_id, source.config, self._clock, self._handles, directory
        )
        new = partial(Segment, self._handles, path, index_interval_bytes=source.config.index_interval_bytes)
        segments = []
        for each in built.segments:
            segment = new(each.base_offset, created_ms=each.created_ms)
            segment.open_sealed(*each[2:])
            segments.append(segment)
        now_ms = self._clock.time_ms()
        active = new(built.end_offset, created_ms=now_ms)
        segments.append(active)
        producers = ProducerStates()
        if built.inherited is not None:
            producers = built.inherited.take_up(active, now_ms)
            directory.keep_snapshots([built.end_offset])
        epochs = LeaderEpochs.decode(staged.plan.epochs)
        assert epochs is not None
        directory.store_epochs(staged.plan.epochs)
        log.adopt(segments, built.log_start_offset, active.next_offset, epochs, producers)
        log.branch_point = BranchPoint(source.topic_partition.topic, source.topic_id, built.end_offset)
        log.first_dirty_offset = min(staged.plan.first_dirty_offset, built.end_offset)
        return log
