"""Moves replicas from one log directory of a broker to another while they serve, as AlterReplicaLogDirs demands.

A move copies the log's files into a future replica (`future_replica`) in rounds, while records come. When little is
left, the log takes no records: the rest and the last indexes are copied and made durable, the copy gets the partition's
name, the `PartitionLog` continues with the new files, and the old directory is renamed as that of a deleted partition.
Clients repeat what is refused meanwhile; readers keep the files that they have open.

Invariants: the log takes no records from the last flush of its old files until these durably no longer have the
partition's name; so whichever directory a crash leaves, it has every acknowledged record. Between two rounds
compaction and truncation may replace segments: copies of such segments are made again. One move per partition at a
time. A move that a stop interrupts begins anew after the next start. Runs on the event loop; worker threads copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from flowstone.config import LONG_MAX, MIB
from flowstone.errors import ApiError, StorageFault
from flowstone.log.directories import future_replica
from flowstone.log.directories.future_replica import SegmentFiles
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.lifecycle.flusher import Flusher
from flowstone.log.partition.partition_log import FlushTask, LogPosition, PartitionLog
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.log.segments.segment import Segment
from flowstone.log.segments.sparse_index import IndexEntries
from flowstone.ports.clock import Clock
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

ROUND_BYTES_MAX = 16 * MIB  # copied while compaction and truncation of the log wait
TAIL_BYTES_MAX, TAIL_INDEXES_MAX = 256 * 1024, 1  # copied while the log takes no records; indexes: of sealed segments
INDEXES_COST_BYTES = MIB  # what the indexes of a segment count for in a round, because each file is synced
MOVES_MAX = 10_000
MOVES_AT_ONCE = 4
WANTED_MAX = 100_000  # partitions that are not here yet and whose directory a client has chosen

OnMoved = Callable[[Flusher], None]


class _DeletedMeanwhile(Exception):
    """The topic of a replica was deleted while it moved."""


class ReplicaMove:
    """One move, and how far it is."""

    def __init__(self, log: PartitionLog, source: DirectoryLogs, target: DirectoryLogs, on_moved: OnMoved) -> None:
        self.log, self.source, self.target, self.on_moved = log, source, target, on_moved
        self.is_ending = False  # the last step has begun, which is never cancelled but by a stop
        self.after: ReplicaMove | None = None  # the move of the same log whose last step comes first
        self.copied: dict[Segment, int] = {}
        self.indexes: dict[Segment, list[str]] = {}  # the copied files of sealed segments
        self.is_flushed = False  # the log was flushed when little was left
        self.copied_to = log.log_start_offset  # the offset of the first record that is not copied
        self.task: asyncio.Task[None] | None = None

    @property
    def size_bytes(self) -> int:
        return sum(self.copied.values())

    @property
    def offset_lag(self) -> int:
        return max(0, self.log.log_end_offset - self.copied_to)

    @property
    def is_over(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def home(self) -> DirectoryLogs | None:
        """Return the directory that the log is in now; None if it was deleted."""
        at = self.log.topic_partition
        return next((each for each in (self.source, self.target) if each.logs.get(at) is self.log), None)

    @property
    def is_almost_done(self) -> bool:
        """Return whether the remaining bytes are few enough to be copied while the log refuses records."""
        missing = [each for each in self.log.segments[:-1] if each not in self.indexes]
        missing_bytes = sum(each.size_bytes - self.copied.get(each, 0) for each in self.log.segments)
        return len(missing) <= TAIL_INDEXES_MAX and missing_bytes <= TAIL_BYTES_MAX


class ReplicaMoves:
    def __init__(self, clock: Clock, handles: FileHandles, wanted: dict[TopicPartition, DirectoryLogs]) -> None:
        """Create the moves of a broker; `wanted` are those that its last stop interrupted (`settle`)."""
        self._clock, self._handles = clock, handles
        self._running: dict[TopicPartition, ReplicaMove] = {}
        self._slots = asyncio.Semaphore(MOVES_AT_ONCE)
        # Where partitions are to be: those whose move was interrupted, and those that are not here yet.
        self._wanted = wanted
        self._is_stopped = False
        self.bytes_per_s = LONG_MAX

    def want_in(self, topic_partition: TopicPartition, directory: DirectoryLogs) -> None:
        """Record the directory in which a partition is to be created when it comes to this broker.

        Raises StorageFault if there are too many such notes.
        """
        if len(self._wanted) >= WANTED_MAX and topic_partition not in self._wanted:
            raise StorageFault(f"the directories of {WANTED_MAX} partitions are noted already, the most there may be")
        self._wanted[topic_partition] = directory

    def take_wanted(self, topic_partition: TopicPartition) -> DirectoryLogs | None:
        """Remove and return the directory that was chosen for the partition, or None if none was."""
        return self._wanted.pop(topic_partition, None)

    def find(self, topic_partition: TopicPartition) -> ReplicaMove | None:
        return self._running.get(topic_partition)

    def all(self) -> Sequence[ReplicaMove]:
        return tuple(self._running.values())

    def start(self, log: PartitionLog, source: DirectoryLogs, target: DirectoryLogs, on_moved: OnMoved) -> None:
        """Start a move, which ends another one of the same partition. Raises StorageFault if there are too many.

        If the last step of the other one has begun, the new one follows it. `on_moved` is called with the flusher of
        the new directory when the log has moved.
        """
        self.cancel(log.topic_partition)
        before = self._running.get(log.topic_partition)
        if source is target and before is None:
            return
        if len(self._running) >= MOVES_MAX:
            raise StorageFault(f"{MOVES_MAX} replicas are being moved between log directories, the most there may be")
        move = ReplicaMove(log, source, target, on_moved)
        move.after = before
        self._running[log.topic_partition] = move
        move.task = asyncio.get_running_loop().create_task(self._run(move))

    def cancel(self, topic_partition: TopicPartition) -> None:
        """End the move of a partition, unless its last step has begun."""
        move = self._running.get(topic_partition)
        if move is None or move.task is None or move.is_ending:
            return
        del self._running[topic_partition]
        if move.after is not None and not move.after.is_over:
            self._running[topic_partition] = move.after
        move.task.cancel()

    def ending(self, topic_partition: TopicPartition) -> asyncio.Future[None] | None:
        """Return a future that is done when the last step of a move is over; None if there is no such step."""
        move = self._running.get(topic_partition)
        if move is not None and not move.is_ending:
            move = move.after
        if move is None or move.task is None or move.is_over:
            return None
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        move.task.add_done_callback(lambda _task: None if ended.done() else ended.set_result(None))
        return ended

    def stop(self) -> None:
        """End all moves. The next start of the broker restarts them."""
        self._is_stopped = True
        for move in self._running.values():
            for each in (move, move.after):
                if each is not None and each.task is not None:
                    each.task.cancel()

    async def _run(self, move: ReplicaMove) -> None:
        files, topic_partition = move.target.log_directory.files, move.log.topic_partition
        path = future_replica.future_path(move.target.log_directory, topic_partition)
        assert path is not None, "the request is refused for such a name"
        try:
            if not await self._follow(move):
                return
            async with self._slots:
                await move.target.housekeeping.in_thread(partial(files.new_directory, path))
                while not await self._round(move, path):
                    await self._pause(move)
            logger.info("%s was moved from %s to %s", topic_partition, move.source.path, move.target.path)
        except asyncio.CancelledError:
            if not self._is_stopped:
                self._discard(move, path)
            raise
        except _DeletedMeanwhile:
            self._discard(move, path)
        except (OSError, ApiError, StorageFault) as error:
            logger.error("%s is not moved to %s: %s", topic_partition, move.target.path, error)
            self._discard(move, path)
            move.target.doubt(error)
        finally:
            if self._running.get(topic_partition) is move:
                del self._running[topic_partition]

    async def _follow(self, move: ReplicaMove) -> bool:
        """Wait for the move that comes first, if there is one; return whether there is anything left to move."""
        before = move.after
        if before is None or before.task is None:
            return True
        await asyncio.wait([before.task])
        move.after = None
        if before.log is move.log and before.home is not None:
            move.source = before.home
        return move.source is not move.target

    def _discard(self, move: ReplicaMove, path: str) -> None:
        files = move.target.log_directory.files
        if move.target.fault is None:
            move.target.housekeeping.in_background(lambda: files.remove_tree(path) if files.exists(path) else None)

    async def _pause(self, move: ReplicaMove) -> None:
        """Wait as long as the rate of moves demands after a round."""
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        delay_s = ROUND_BYTES_MAX / max(self.bytes_per_s, 1) if self.bytes_per_s < LONG_MAX else 0.0
        self._clock.call_later(delay_s, lambda: None if moved.done() else moved.set_result(None))
        await moved

    async def _round(self, move: ReplicaMove, path: str) -> bool:
        """Copy a part of the missing bytes, or do the last step if few are missing; return whether the move is
        complete.
        """
        log = move.log
        async with log.names_lock:
            if not log.exists:
                self._swap_empty(move, path)
                return True
            await self._drop_replaced(move, path)
            if move.is_almost_done and not move.is_flushed:
                move.is_flushed = True
                await move.source.flusher.flushed_once(log)
            if is_over := move.is_almost_done:
                await self._finish(move, path)
            else:
                await self._copy_some(move, path)
            return is_over

    async def _drop_replaced(self, move: ReplicaMove, path: str) -> None:
        """Forget copies of segments that the log no longer has: compaction and truncation make new ones."""
        current = set(move.log.segments)
        gone = [each for each in move.copied if each not in current or each.size_bytes < move.copied[each]]
        for segment in gone:
            del move.copied[segment]
            move.indexes.pop(segment, None)
            remove = partial(future_replica.remove_segment, move.target.log_directory.files, path, segment.base_offset)
            await move.target.housekeeping.in_thread(remove)

    async def _copy_some(self, move: ReplicaMove, path: str) -> None:
        log, left, files = move.log, ROUND_BYTES_MAX, move.target.log_directory.files
        end = log.log_end_offset
        for segment in list(log.segments):
            begin, size_bytes = move.copied.get(segment, 0), segment.size_bytes
            stop = min(size_bytes, begin + left)
            try:
                if stop > begin:
                    copy = partial(future_replica.copy_part, files, log.path, path, segment.base_offset, begin, stop)
                    await move.target.housekeeping.in_thread(copy)
                    left -= stop - begin
                    move.copied[segment] = stop
                if left > 0 and stop == segment.size_bytes and await self._copy_indexes(move, path, segment):
                    left = max(left - INDEXES_COST_BYTES, 0)
            except FileNotFoundError:
                return  # retention has deleted the segment
            if stop < size_bytes:
                move.copied_to = max(segment.base_offset, log.log_start_offset)
                return
        move.copied_to = end

    async def _copy_indexes(self, move: ReplicaMove, path: str, segment: Segment) -> bool:
        """Copy the indexes of a segment if it is sealed; return False if there is nothing to copy."""
        log, target = move.log, move.target
        if segment is log.segments.active or segment in move.indexes:
            return False
        work = partial(future_replica.copy_indexes, target.log_directory.files, log.path, path, segment.base_offset)
        move.indexes[segment] = await asyncio.wrap_future(target.housekeeping.submit(work))
        return True

    # The last step

    async def _finish(self, move: ReplicaMove, path: str) -> None:
        log, source, target = move.log, move.source, move.target
        log.is_held = move.is_ending = True
        try:
            await source.flusher.released(log)
            source.flusher.forget(log)
            task = log.closing_task()
            if task is not None:
                await self._flush(move, task)
            found = await self._complete(move, path)
            place = target.partition_path(log.topic_partition)
            await self._swap(move, path, place)
            self._repoint(move, place, found)
        finally:
            log.is_held = False
            if (home := move.home) is not None:  # not deleted meanwhile
                log.is_forgotten = False
                home.flusher.request(log)
        move.on_moved(target.flusher)
        await source.forget_moved(log.topic_partition)
        await target.housekeeping.in_thread(partial(future_replica.remove_mark, log.files, place))

    async def _complete(self, move: ReplicaMove, path: str) -> dict[int, SegmentFiles]:
        """Copy all that is missing; return the files of each segment."""
        log, identity = move.log, move.source.log_directory.identity
        assert identity is not None
        copied = {segment.base_offset: count for segment, count in move.copied.items()}
        sizes = {segment.base_offset: segment.size_bytes for segment in log.segments}
        files = move.target.log_directory.files
        indexes = [name for each in log.segments for name in move.indexes.get(each, ())]
        work = partial(future_replica.complete, files, log.path, path, copied, sizes, identity.directory_id, indexes)
        try:
            return await asyncio.wrap_future(move.target.housekeeping.submit(work))
        finally:
            _check_exists(move)

    async def _swap(self, move: ReplicaMove, path: str, place: str) -> None:
        """Give the copy the partition's name, and then the old directory another one; undo it if that fails.

        From the second rename on the copy counts, and before it the old directory.
        """
        log, source, target = move.log, move.source, move.target
        files, topic_partition = target.log_directory.files, log.topic_partition
        try:
            rename = partial(future_replica.rename_into_place, files, path, place, target.path)
            await target.housekeeping.in_thread(rename)
            _check_exists(move)
            target.logs[topic_partition] = log  # for the checkpoints only: it still has its old files
            await target.housekeeping.checkpoint()
            _check_exists(move)
            condemned = source.log_directory.condemn(log.path)
        except BaseException:
            if target.logs.get(topic_partition) is log:
                del target.logs[topic_partition]
            if target.fault is None and not self._is_stopped and files.exists(place):
                target.housekeeping.remove_tree_later(target.log_directory.condemn(place), 0)
            raise
        try:
            await source.housekeeping.in_thread(partial(files.sync_directory, source.path))
        except OSError as error:
            # Which of the two directories the next start finds is unknown, so that nothing may be added to either.
            del target.logs[topic_partition]
            fault = StorageFault(f"{source.path}: {error}")
            source.fail(fault)
            raise fault from error
        source.housekeeping.remove_tree_later(condemned, log.config.file_delete_delay_ms)

    async def _flush(self, move: ReplicaMove, task: FlushTask) -> None:
        """Make the old files durable and as after a clean close. Raises StorageFault, for good, if that fails."""
        try:
            await move.source.housekeeping.in_thread(task.run)
        except OSError as error:
            _check_exists(move)
            fault = StorageFault(f"{move.source.path}: a flush of {move.log.topic_partition} failed: {error}")
            move.source.fail(fault)
            raise fault from error
        move.log.durability.flushed(task)

    def _repoint(self, move: ReplicaMove, path: str, found: dict[int, SegmentFiles]) -> None:
        """Let the log continue with the files at `path`."""
        log, source, target = move.log, move.source, move.target
        assert target.logs[log.topic_partition] is log
        old = list(log.segments)
        new = [self._opened(log, path, segment, found[segment.base_offset]) for segment in old[:-1]]
        active = self._new_segment(log, path, old[-1])
        offsets, times = old[-1].indexes.offsets, old[-1].indexes.times
        assert isinstance(offsets, IndexEntries)
        assert isinstance(times, IndexEntries)
        active.open_left(old[-1].left(), offsets, times, old[-1].transactions.read())
        directory = PartitionDirectory(target.log_directory.files, path, exists=True)
        directory.keep_snapshots(list(log.directory.snapshots))
        directory.hole_ends = list(log.directory.hole_ends)
        log.close()
        log.directory = log.store.directory = directory
        log.store.adopt([*new, active])
        log.durability.void_tasks()
        log.found_aborts = {}
        log.end = log.flushed_end = LogPosition(log.end.offset, active.base_offset, active.size_bytes)
        log.durability.note_as_closed()
        del source.logs[log.topic_partition]

    def _opened(self, log: PartitionLog, path: str, old: Segment, found: SegmentFiles) -> Segment:
        segment = self._new_segment(log, path, old)
        segment.open_sealed(*found)
        return segment

    def _new_segment(self, log: PartitionLog, path: str, old: Segment) -> Segment:
        interval_bytes = log.config.index_interval_bytes
        return Segment(
            self._handles, path, old.base_offset, created_ms=old.created_ms, index_interval_bytes=interval_bytes
        )

    def _swap_empty(self, move: ReplicaMove, path: str) -> None:
        """Move a log that has no files yet."""
        log, topic_partition = move.log, move.log.topic_partition
        del move.source.logs[topic_partition]
        files = move.target.log_directory.files
        place = move.target.partition_path(topic_partition)
        log.directory = log.store.directory = PartitionDirectory(files, place, exists=False)
        log.store.adopt([log.store.new_segment(log.segments.active.base_offset)])
        move.target.logs[topic_partition] = log
        move.on_moved(move.target.flusher)
        self._discard(move, path)


def _check_exists(move: ReplicaMove) -> None:
    if move.source.logs.get(move.log.topic_partition) is not move.log:
        raise _DeletedMeanwhile
