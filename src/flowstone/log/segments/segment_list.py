"""The segments of one log in order; finds the one that contains an offset.

Owns the list and the names of the files that leave it. The last segment is the active one; the list is never empty. It
does not know what the records mean or what is durable.

Invariant: base offsets rise, and where one segment ends the next begins: compaction leaves holes inside segments, but
none at a segment's end, so that a missing segment is detected. An offset that compaction removed leads to the first
batch after it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import overload

from flowstone.log.segments.partition_directory import DELETED_SUFFIX, LogPosition
from flowstone.log.segments.segment import Segment
from flowstone.ports.files import Files


class SegmentList(Sequence[Segment]):
    __slots__ = ("_bases", "_segments", "active")

    def __init__(self, segments: Sequence[Segment]) -> None:
        assert segments
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        self.active = self._segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, at: int) -> Segment: ...

    @overload
    def __getitem__(self, at: slice) -> list[Segment]: ...

    def __getitem__(self, at: int | slice) -> Segment | list[Segment]:
        return self._segments[at]

    # Finding

    def at(self, offset: int) -> int:
        """Return the number of the segment that has, or had, the offset."""
        return bisect_right(self._bases, offset) - 1

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segments that have this offset and later ones."""
        return self._segments[self.at(offset) :]

    def locate(self, offset: int) -> tuple[Segment, int, int]:
        """Return segment, position and size of the first batch that ends at or after an offset that the log has had."""
        segment = self._segments[bisect_right(self._bases, offset) - 1]
        located = segment.locate(offset)
        if located is None:
            raise segment.fault(segment.size_bytes, offset)
        return segment, *located

    def bytes_between(self, begin: LogPosition, end: LogPosition) -> int:
        """Return the number of bytes between two positions, without those that are no longer there."""
        first, last = begin.segment_base_offset, end.segment_base_offset
        if first >= last:  # also if the log was cut since
            return max(end.position - begin.position, 0) if first == last else 0
        count = end.position
        for segment in reversed(self._segments[: self.at(last)]):
            if segment.base_offset < first:
                break
            # The segment may have been compacted since.
            count += max(segment.size_bytes - (begin.position if segment.base_offset == first else 0), 0)
        return count

    # Changing

    def add(self, segment: Segment) -> None:
        """Add a segment, which becomes the active one."""
        assert segment.base_offset > self._bases[-1]
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def has_any_below(self, offset: int) -> bool:
        """Return whether a whole segment lies below the offset."""
        return len(self._bases) > 1 and self._bases[1] <= offset

    def drop_below(self, offset: int, files: Files) -> list[str]:
        """Drop the segments below the offset; return their renamed files. Raises OSError, maybe after some renames."""
        renamed: list[str] = []
        while self.has_any_below(offset):
            renamed += mark_deleted(self._segments[0], files)
            del self._segments[0], self._bases[0]
        return renamed

    def cut_at(self, segment: Segment, shortened: Segment, files: Files) -> None:
        """Remove what follows the segment, newest first, and replace it by a shortened one, which becomes active."""
        at = self._segments.index(segment)
        _remove(self._segments[at + 1 :], files)
        self._segments[at:], self._bases[at:] = [shortened], [shortened.base_offset]
        self.active = shortened

    def replace_all(self, by: Segment, files: Files) -> None:
        """Remove every segment, newest first; `by` becomes the only one."""
        _remove(self._segments, files)
        self._segments, self._bases, self.active = [by], [by.base_offset], by

    def has_run(self, segments: Sequence[Segment]) -> bool:
        """Return whether these segments are still in the list, adjacent and sealed."""
        if segments[0] not in self._segments[:-1]:
            return False
        at = self._segments.index(segments[0])
        return self._segments[at : at + len(segments)] == list(segments) and segments[-1] is not self.active

    def replace_run(self, segments: Sequence[Segment], by: Segment) -> None:
        """Replace several sealed segments by one."""
        assert self.has_run(segments)
        assert by.base_offset == segments[0].base_offset
        at = self._segments.index(segments[0])
        self._segments[at : at + len(segments)] = [by]
        self._bases[at : at + len(segments)] = [by.base_offset]


def _remove(segments: Sequence[Segment], files: Files) -> None:
    """Remove the files of segments, newest first, so that the rest is a prefix at every moment."""
    for segment in reversed(segments):
        for handle in segment.handles:
            handle.drop()
            if files.exists(handle.path):
                files.remove(handle.path)


def mark_deleted(segment: Segment, files: Files) -> list[str]:
    """Rename the segment's files, to be removed later; return the new names. Open files stay readable."""
    renamed = []
    for handle in segment.handles:
        if files.exists(handle.path):
            files.rename(handle.path, handle.path + DELETED_SUFFIX)
            renamed.append(handle.path + DELETED_SUFFIX)
        handle.drop()
    return renamed
