"""What of a log survives a power loss, and what there is to flush.

Owns the flushed end, below which every byte, index, snapshot and name is durable, and the tasks that move it. It never
flushes: whoever runs a `FlushTask` says so with `flushed`. What is cut from the log makes the outcome of a task under
way void: its bytes may be those that went.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowstone.log.segments.partition_directory import FlushTask, LogPosition, PartitionDirectory
from flowstone.log.segments.preallocation import give_back, preallocate, stop_preallocating
from flowstone.log.segments.segment_list import SegmentList


class Durability:
    __slots__ = ("_closed_at", "_directory", "_generation", "_is_held", "flushed_end", "is_checkpoint_due")

    def __init__(self, directory: PartitionDirectory) -> None:
        self.flushed_end = LogPosition(0, 0, 0)
        self.is_checkpoint_due = False  # the first records or a sealed segment are durable: a checkpoint should say so
        self._directory = directory
        self._generation = 0
        self._is_held = False
        self._closed_at: tuple[LogPosition, int] | None = None  # all that a clean close leaves was there, as of then

    def take_dirty(self, end: LogPosition, segments: SegmentList) -> FlushTask | None:
        """Return what makes all of the log durable up to its end, or None if it is."""
        if self.flushed_end.offset == end.offset and not self._directory.has_unsynced:
            return None
        active = segments.active
        if active.size_bytes > active.preallocated_end:
            preallocate(active, self.flushed_end)
        return self._directory.take(end, self._generation, active.log.get())

    def flushed(self, task: FlushTask, end: LogPosition, segments: SegmentList) -> int:
        """Take note that a task has run; return how many bytes were not durable before."""
        if task.generation != self._generation or self._is_held:
            return 0
        before, task_end = self.flushed_end, task.end
        assert before.offset <= task_end.offset <= end.offset
        self.flushed_end = task_end
        if task_end.segment_base_offset != before.segment_base_offset or not before.offset:
            self.is_checkpoint_due = True
        if task_end == end:
            segments.active.log.pinned = False
        return segments.bytes_between(before, task_end)

    @contextmanager
    def held(self, end: LogPosition) -> Iterator[None]:
        """What lies from `end` on counts as not durable, whatever is flushed meanwhile."""
        self.lower(end)
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def void_tasks(self) -> None:
        """The log was cut: the outcome of a flush under way does not count."""
        self._generation += 1

    def lower(self, end: LogPosition) -> None:
        """What lies from `end` on counts as not durable; a flush under way does not change that."""
        self._generation += 1
        self.flushed_end = min(self.flushed_end, end)

    # A clean close

    def prepare_close(
        self, end: LogPosition, segments: SegmentList, *, has_transactions: bool, snapshot: bytes
    ) -> None:
        """Have written what shortens the next start: the indexes of the active segment, and a snapshot of producers."""
        active = segments.active
        give_back(active)
        stop_preallocating(active)
        active.write_indexes(has_transactions=has_transactions)
        self._directory.note_unsynced(*(handle.get() for handle in active.handles))
        self._directory.note_names_changed()
        self._directory.write_snapshot(end.offset, snapshot)

    def is_closed(self, end: LogPosition) -> bool:
        """Return whether a clean close has nothing to do."""
        return self._closed_at == (end, self._generation) and not self._directory.has_unsynced

    def note_as_closed(self, end: LogPosition) -> None:
        """The log is as a clean close has left it: as long as that is so, the next one has nothing to do."""
        self._closed_at = end, self._generation
