"""Durability of a log: the part that survives a power loss, and the work to flush the rest.

Owns the tasks that make a log durable, and moves the log's `flushed_end`, below which every byte, index, snapshot and
name is durable. It never flushes: whoever runs a `FlushTask` says so with `flushed`. What is cut from the log makes
the outcome of a task under way void: its bytes may be those that went.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from flowstone.log.segments.partition_directory import FlushTask, LogPosition
from flowstone.log.segments.preallocation import preallocate, release_unused, stop_preallocating

if TYPE_CHECKING:
    from flowstone.log.partition.partition_log import PartitionLog


class Durability:
    __slots__ = ("_closed_at", "_generation", "_is_held", "_log", "is_checkpoint_due")

    def __init__(self, log: PartitionLog) -> None:
        # Callers have the log. A log that is deleted must be freed without the garbage collector.
        self._log = cast("Callable[[], PartitionLog]", weakref.ref(log))
        self.is_checkpoint_due = False  # the first records or a sealed segment are durable: a checkpoint should say so
        self._generation = 0
        self._is_held = False
        self._closed_at: tuple[LogPosition, int] | None = None  # the end at which a clean close last wrote everything

    def take_dirty(self) -> FlushTask | None:
        """Return the task that makes the whole log durable, or None if it is. `flushed` must be called afterwards."""
        log = self._log()
        end, directory = log.end, log.directory
        if log.flushed_end.offset == end.offset and not directory.has_unsynced:
            return None
        active = log.store.segments.active
        if active.size_bytes > active.preallocated_end:
            preallocate(active, log.flushed_end)
        return directory.take(end, self._generation, active.log.get())

    def flushed(self, task: FlushTask) -> int:
        """Record that a task has run; return how many bytes became durable."""
        if task.generation != self._generation or self._is_held:
            return 0
        log = self._log()
        before, task_end, segments = log.flushed_end, task.end, log.store.segments
        assert before.offset <= task_end.offset <= log.end.offset
        log.flushed_end = task_end
        if task_end == log.end:
            segments.active.log.pinned = False
        if task_end.segment_base_offset == before.segment_base_offset and before.offset:
            return task_end.position - before.position
        self.is_checkpoint_due = True
        return segments.bytes_between(before, task_end)

    @contextmanager
    def held(self, end: LogPosition) -> Iterator[None]:
        """Treat everything from `end` on as not durable inside the block, whatever is flushed meanwhile."""
        self.lower(end)
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def void_tasks(self) -> None:
        """Ignore the outcome of a running flush, because the log was cut."""
        self._generation += 1

    def lower(self, end: LogPosition) -> None:
        """Treat everything from `end` on as not durable; the result of a running flush is ignored."""
        self._generation += 1
        self._log().flushed_end = min(self._log().flushed_end, end)

    # A clean close

    def prepare_close(self) -> None:
        """Write the files that shorten the next start: the active segment's indexes and a snapshot of producers."""
        log = self._log()
        active, directory = log.store.segments.active, log.directory
        release_unused(active)
        stop_preallocating(active)
        active.write_indexes(has_transactions=log.has_transactions)
        directory.note_unsynced(*(handle.get() for handle in active.handles))
        directory.note_names_changed()
        directory.write_snapshot(log.end.offset, log.producers.encode_snapshot())

    def is_closed(self) -> bool:
        """Return whether the files are those of a clean close, so that a close has nothing to write."""
        return self._closed_at == (self._log().end, self._generation) and not self._log().directory.has_unsynced

    def note_as_open(self) -> None:
        """Record that the files are about to change without a change of the log's end."""
        self._closed_at = None

    def note_as_closed(self) -> None:
        """Record that the files are those of a clean close; until the next change a close has nothing to write."""
        self._closed_at = self._log().end, self._generation
