"""Replaces several old segments by a new one, so that a crash at any point leaves the old or the new (C5).

Owns the names of files on their way: Kafka's `.cleaned` and `.swap`. The steps, each durable before the next:

1. `.cleaned` becomes `.swap`, the log file last. From here on the new segment counts: a start that finds a `.log.swap`
   finishes what follows. Before, it finds `.cleaned` files, and removes them.
2. The old segments' files become `.deleted`; the log reads the new one.
3. `.swap` becomes the segment's own name, the log file last.

The new segment ends where the last old one did: that is how a start knows which ones it replaces. Names change on the
event loop, between whose turns nothing is half done; what waits for the disk is run by `in_thread`. Readers of an old
segment keep its open file.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from flowstone.errors import StorageFault
from flowstone.log.segments.batch_scan import DamagedBatch, scan
from flowstone.log.segments.compaction_job import CLEANED_SUFFIX, CleanedSegment
from flowstone.log.segments.file_names import offset_in_name
from flowstone.log.segments.partition_directory import DELETED_SUFFIX, PartitionDirectory
from flowstone.log.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from flowstone.log.segments.segment_list import SegmentList, mark_deleted
from flowstone.ports.files import Files

logger = logging.getLogger(__name__)

SWAP_SUFFIX = ".swap"
# The log file last: it shows that all of them are there.
_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX)

InThread = Callable[[Callable[[], None]], Awaitable[None]]


class SegmentSwap:
    def __init__(self, directory: PartitionDirectory, segments: SegmentList, old: Sequence[Segment]) -> None:
        self._directory, self._files = directory, directory.files
        self._segments, self._old = segments, old

    def _is_possible(self) -> bool:
        """Return False if the log has lost one of the old segments meanwhile, by retention or truncation."""
        return self._segments.has_run(self._old)

    async def run(self, cleaned: CleanedSegment, new: Segment, in_thread: InThread) -> list[str]:
        """Put `new`, whose files are `.cleaned`, in place; return the old ones' files, to be removed later.

        Returns None if the log no longer has the old ones. Raises OSError if nothing has changed, StorageFault if the
        next start must finish or undo the swap.
        """
        sync = partial(self._sync, in_thread)
        if not self._is_possible():
            self._discard(cleaned)
            return []
        try:
            self._rename_all(cleaned, CLEANED_SUFFIX, SWAP_SUFFIX)
            self._open(new, cleaned)
        except OSError:
            self._discard(cleaned)
            raise
        await sync()
        if not self._is_possible():
            self._discard(cleaned)
            await sync()
            return []
        self._segments.replace_run(self._old, new)
        try:
            renamed = [path for segment in self._old for path in mark_deleted(segment, self._files)]
            await sync()
            self._rename_all(cleaned, SWAP_SUFFIX, "")
        except OSError as error:
            raise StorageFault(f"{self._directory.path}: segments cannot be replaced: {error}") from error
        for handle in new.handles:
            handle.path = handle.path.removesuffix(SWAP_SUFFIX)
        await sync()
        for handle in new.handles:
            handle.pinned = False
        return renamed

    async def _sync(self, in_thread: InThread) -> None:
        try:
            await in_thread(partial(self._files.sync_directory, self._directory.path))
        except OSError as error:
            raise StorageFault(f"{self._directory.path}: its names cannot be made durable: {error}") from error

    def _rename_all(self, cleaned: CleanedSegment, before: str, after: str) -> None:
        _rename_all(self._files, self._directory.path, cleaned.base_offset, before, after)

    def _discard(self, cleaned: CleanedSegment) -> None:
        _discard(self._files, self._directory.path, cleaned.base_offset)

    @staticmethod
    def _open(new: Segment, cleaned: CleanedSegment) -> None:
        """Open the new segment's files, which stay open while their names change."""
        new.open_sealed(*cleaned[2:])
        for handle in new.handles:
            handle.path += SWAP_SUFFIX
            handle.get()
            handle.pinned = True


def _discard(files: Files, directory: str, base_offset: int) -> None:
    """Remove the files of a new segment that is no longer wanted, the log file first, or a start would use it."""
    for suffix in reversed(_SUFFIXES):
        for on_the_way in (SWAP_SUFFIX, CLEANED_SUFFIX):
            path = segment_path(directory, base_offset, suffix) + on_the_way
            if files.exists(path):
                files.remove(path)


def remove_cleaned(files: Files, directory: str) -> None:
    """Remove the files of an abandoned compaction."""
    for name in files.names(directory):
        if name.endswith(CLEANED_SUFFIX):
            files.remove(f"{directory}/{name}")


def _rename_all(files: Files, directory: str, base_offset: int, before: str, after: str) -> None:
    for suffix in _SUFFIXES:
        path = segment_path(directory, base_offset, suffix)
        if files.exists(path + before):
            files.rename(path + before, path + after)


# At a start


def finish_swaps(files: Files, directory: str, names: Sequence[str]) -> bool:
    """Finish what a crash interrupted, or undo it; return whether there was any. `names` are those in the directory.

    Waits for the disk. Raises StorageFault if neither is possible.
    """
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        return False
    remove_cleaned(files, directory)
    bases = [offset_in_name(name, LOG_SUFFIX) for name in names]
    for name in names:
        base_offset = offset_in_name(name.removesuffix(SWAP_SUFFIX), LOG_SUFFIX)
        if name.endswith(SWAP_SUFFIX) and base_offset is not None:
            _finish(files, directory, base_offset, [base for base in bases if base is not None])
    for name in files.names(directory):
        if name.endswith(SWAP_SUFFIX):  # an index whose log file never became a `.swap`
            files.remove(f"{directory}/{name}")
    return True


def _finish(files: Files, directory: str, base_offset: int, bases: list[int]) -> None:
    path = segment_path(directory, base_offset, LOG_SUFFIX)
    try:
        end_offset = _end_offset(files, path + SWAP_SUFFIX, base_offset)
    except DamagedBatch as damage:
        if base_offset not in bases or any(name.endswith(DELETED_SUFFIX) for name in files.names(directory)):
            raise StorageFault(f"{path + SWAP_SUFFIX} is damaged, and what it replaces is gone: {damage}") from None
        logger.error("%s is damaged and is not used: %s", path + SWAP_SUFFIX, damage)
        _discard(files, directory, base_offset)
        return
    for base in bases:
        if base_offset < base < end_offset:
            for suffix in _SUFFIXES:
                if files.exists(segment_path(directory, base, suffix)):
                    files.remove(segment_path(directory, base, suffix))
    files.sync_directory(directory)
    _rename_all(files, directory, base_offset, SWAP_SUFFIX, "")
    files.sync_directory(directory)
    logger.info("%s: finished the compaction of offsets %d to %d", directory, base_offset, end_offset - 1)


def _end_offset(files: Files, path: str, base_offset: int) -> int:
    file = files.open(path)
    end_offset = base_offset
    for batch in scan(file, 0, file.size(), base_offset, verify_from_offset=0):
        end_offset = batch.header.next_offset
    return end_offset
