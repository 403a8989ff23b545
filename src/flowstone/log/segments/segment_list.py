"""The segments of one log in order, and which of them has an offset.

Owns the list and the names of the files that leave it. The last segment is the active one, and there always is one. It
knows nothing of what the segments' records mean, nor of what is durable.

Invariant: base offsets rise, and where one segment ends the next begins: compaction leaves holes inside segments, but
none at a segment's end, so that a segment that is missing is missed. An offset that compaction took leads to the first
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
        """The number of the segment that has, or had, the offset."""
        return bisect_right(self._bases, offset) - 1

    def from_offset(self, offset: int) -> list[Segment]:
        """The segments that have this offset and later ones."""
        return self._segments[self.at(offset) :]

    def locate(self, offset: int) -> tuple[Segment, int, int]:
        """The segment, position and size of the first batch that ends at or after `offset`, which the log has had."""
        segment = self._segments[self.at(offset)]
        located = segment.locate(offset)
        if located is None:
            raise segment.fault(segment.size_bytes, offset)
        return segment, *located

    def bytes_between(self, begin: LogPosition, end: LogPosition) -> int:
        """How much lies between two places, as far as it is still there."""
        first, last = begin.segment_base_offset, end.segment_base_offset
        if first >= last:  # or the log was cut since
            return max(end.position - begin.position, 0) if first == last else 0
        count = end.position
        for segment in reversed(self._segments[: self.at(last)]):
            if segment.base_offset < first:
                break
            # It may have been compacted since.
            count += max(segment.size_bytes - (begin.position if segment.base_offset == first else 0), 0)
        return count

    # Changing

    def add(self, segment: Segment) -> None:
        """The segment is the active one from now on."""
        assert segment.base_offset > self._bases[-1]
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def has_any_below(self, offset: int) -> bool:
        """Whether a segment lies below the offset as a whole."""
        return len(self._bases) > 1 and self._bases[1] <= offset

    def drop_below(self, offset: int, files: Files) -> list[str]:
        """Lets go of the segments below the offset and renames their files; the new names. OSError half-way."""
        renamed: list[str] = []
        while self.has_any_below(offset):
            renamed += set_aside(self._segments[0], files)
            del self._segments[0], self._bases[0]
        return renamed

    def cut_at(self, segment: Segment, shortened: Segment, files: Files) -> None:
        """Removes what follows the segment, newest first, and puts a shortened one in its place, as the active one."""
        at = self._segments.index(segment)
        _remove(self._segments[at + 1 :], files)
        self._segments[at:], self._bases[at:] = [shortened], [shortened.base_offset]
        self.active = shortened

    def replace_all(self, by: Segment, files: Files) -> None:
        """Removes every segment, newest first; another is the only one from now on."""
        _remove(self._segments, files)
        self._segments, self._bases, self.active = [by], [by.base_offset], by

    def has_run(self, segments: Sequence[Segment]) -> bool:
        """Whether these very segments are still here, side by side, and sealed."""
        if segments[0] not in self._segments[:-1]:
            return False
        at = self._segments.index(segments[0])
        return self._segments[at : at + len(segments)] == list(segments) and segments[-1] is not self.active

    def replace_run(self, segments: Sequence[Segment], by: Segment) -> None:
        """One segment in place of several sealed ones."""
        assert self.has_run(segments)
        assert by.base_offset == segments[0].base_offset
        at = self._segments.index(segments[0])
        self._segments[at : at + len(segments)] = [by]
        self._bases[at : at + len(segments)] = [by.base_offset]


def _remove(segments: Sequence[Segment], files: Files) -> None:
    """Newest first, so that what is left is a prefix at every moment."""
    for segment in reversed(segments):
        for handle in segment.handles:
            handle.drop()
            if files.exists(handle.path):
                files.remove(handle.path)


def set_aside(segment: Segment, files: Files) -> list[str]:
    """Renames the segment's files as deleted ones, to be removed later; the new names. Open files stay readable."""
    renamed = []
    for handle in segment.handles:
        if files.exists(handle.path):
            files.rename(handle.path, handle.path + DELETED_SUFFIX)
            renamed.append(handle.path + DELETED_SUFFIX)
        handle.drop()
    return renamed
