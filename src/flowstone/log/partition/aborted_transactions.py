"""Lookup of the aborted transactions whose records a read_committed reader must skip."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from flowstone.errors import StorageFault
from flowstone.log.segments.cached_reads import LogSlice, NotCached, wait_for
from flowstone.log.segments.segment import Segment

# The most entries searched on the event loop, in about 5 ms; longer searches run in a worker thread.
INLINE_ENTRIES_MAX = 20_000
_FIRST_OFFSET = attrgetter("first_offset")
FOUND_MAX = 16  # results of long searches that are kept until their readers ask again


class AbortedTransaction(NamedTuple):
    """The producer's transactional batches from this offset to its next marker are aborted."""

    producer_id: int
    first_offset: int


class LongSearch(NotCached):
    """A search is too long for the event loop: `warm` runs it in a thread, and the next call finds its result."""

    def __init__(self, segments: Sequence[Segment], start: int, end: int, found: FoundAborts) -> None:
        super().__init__(segments[0].log.get(), 0, 0)
        self._segments, self._start, self._end, self._found = segments, start, end, found

    def warm(self) -> None:
        aborted = wait_for(lambda: _search(self._segments, self._start, self._end, None))
        assert aborted is not None
        if len(self._found) >= FOUND_MAX:  # drops the results of readers that never came back
            self._found.clear()
        self._found[self._start, self._end] = aborted


FoundAborts = dict[tuple[int, int], list[AbortedTransaction]]


def find_aborted(segments: Sequence[Segment], start: int, end: int, found: FoundAborts) -> list[AbortedTransaction]:
    """Return the aborted transactions with records from `start` to before `end`, by their first offsets.

    `segments` begin with the one that has `start`. `found` has the results of long searches. Raises NotCached.
    """
    if found and (start, end) in found:
        return found.pop((start, end))
    aborted = _search(segments, start, end, INLINE_ENTRIES_MAX)
    if aborted is None:
        raise LongSearch(segments, start, end, found)
    return aborted


def end_of_slice(segments: Sequence[Segment], records: LogSlice, end: int) -> int:
    """Return an offset at or after the end of `records`, which begin in the first of the segments; at most `end`.

    The offset index gives it, where an entry leads beyond the slice. An entry is believed if it names a batch that is
    there: an offset too low would hide an aborted transaction from the reader. Raises NotCached.
    """
    segment, slice_end = segments[0], records.position + len(records)
    entry = segment.indexes.offsets.first_to(slice_end) if segment.indexes.offsets is not None else None
    if entry is None or entry[1] >= segment.size_bytes:
        return min(end, segments[1].base_offset) if len(segments) > 1 else end
    try:
        return min(end, segment.base_offset + entry[0] + 1) if segment.is_right(*entry) else end
    except StorageFault:
        return end


def _search(
    segments: Sequence[Segment], start: int, end: int, entries_max: int | None
) -> list[AbortedTransaction] | None:
    """Return the aborted transactions, or None if there are more than `entries_max` entries to search."""
    aborts: list[AbortedTransaction] = []
    seen, is_last = 0, False
    for segment in segments:
        if not segment.transactions.size_bytes:
            continue
        for _, producer_id, first_offset, _, last_stable_offset in segment.transactions.entries_from(start):
            seen += 1
            if entries_max is not None and seen > entries_max:
                return None
            if first_offset < end:
                aborts.append(AbortedTransaction(producer_id, first_offset))
            if last_stable_offset >= end:
                is_last = True
                break
        if is_last:
            break
    if len(aborts) > 1:
        aborts.sort(key=_FIRST_OFFSET)
    return aborts
