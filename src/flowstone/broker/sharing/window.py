"""The window of a share partition: every offset from its start to its end, in ranges of records that are alike.

A range has one state, one delivery count and, if acquired, one owner. Ranges are split where a request needs it, and
joined when they are alike again, so that whole batches that are delivered and accepted in order cost a few operations,
however many records they have. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter

from flowstone.coordinator.share.records import DeliveryState

AVAILABLE, ACQUIRED = DeliveryState.AVAILABLE, DeliveryState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
TERMINAL = frozenset((ACKNOWLEDGED, ARCHIVED))

_first = attrgetter("first")


class Range:
    """Consecutive offsets in the same state."""

    __slots__ = (
        "batch_size",
        "count",
        "deadline_ms",
        "first",
        "is_copied",
        "last",
        "letter_reason",
        "not_before_ms",
        "owner",
        "state",
        "target",
        "ticket",
    )

    def __init__(self, first: int, last: int, state: DeliveryState, count: int = 0) -> None:
        self.first, self.last, self.state, self.count = first, last, state, count
        # The number of records that were first delivered together: later deliveries are of parts of it.
        self.batch_size = last - first + 1
        # Of acquired records: the member, and the end of its lock.
        self.owner: str | None = None
        self.deadline_ms = 0
        # The state that acquired records take once it is durable, or None.
        self.target: DeliveryState | None = None
        self.ticket = 0  # the number of the write that makes it durable
        # Why the records are to be copied to a dead letter queue before they are archived; None unless they are.
        self.letter_reason: int | None = None
        self.is_copied = False  # whether they have been copied, and are archived with the next write
        # Available records are not delivered before this time.
        self.not_before_ms = 0

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __repr__(self) -> str:
        return f"Range({self.first}-{self.last} {self.state.name} {self.count} {self.owner} {self.target})"

    @property
    def is_copying(self) -> bool:
        return self.letter_reason is not None

    def part(self, first: int, last: int) -> Range:
        part = Range(first, last, self.state, self.count)
        part.batch_size, part.owner, part.deadline_ms = self.batch_size, self.owner, self.deadline_ms
        part.target, part.ticket, part.not_before_ms = self.target, self.ticket, self.not_before_ms
        part.letter_reason, part.is_copied = self.letter_reason, self.is_copied
        return part

    def is_like(self, other: Range) -> bool:
        """Return whether a neighbour may be joined with this range."""
        if self.state is not other.state or self.target is not None or other.target is not None:
            return False
        if self.state in TERMINAL:
            return True
        if self.state is ACQUIRED:
            return (
                self.owner == other.owner
                and self.count == other.count
                and self.deadline_ms == other.deadline_ms
                and self.batch_size == other.batch_size
            )
        return (
            self.count == other.count
            and self.batch_size == other.batch_size
            and self.not_before_ms == other.not_before_ms
        )


class Window:
    def __init__(self, start: int) -> None:
        self.start = start  # the first offset, if there is any
        self._ranges: list[Range] = []

    @property
    def next_offset(self) -> int:
        """Return the offset after the last one."""
        return self._ranges[-1].last + 1 if self._ranges else self.start

    def __len__(self) -> int:
        return self.next_offset - self.start

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    @property
    def range_count(self) -> int:
        return len(self._ranges)

    def append(self, added: Range) -> None:
        """Add a range at the end, which must follow without a gap; one that is acquired remains a range of its own."""
        assert added.first == self.next_offset, (added, self.next_offset)
        if added.state is not ACQUIRED and self._ranges and self._ranges[-1].is_like(added):
            self._ranges[-1].last = added.last
        else:
            self._ranges.append(added)

    def overlapping(self, first: int, last: int) -> list[Range]:
        """Return the ranges that have any of these offsets."""
        ranges = self._ranges
        begin = self._index(first)
        if begin < len(ranges) and ranges[begin].last >= last:  # as with whole batches in order
            return [ranges[begin]] if ranges[begin].first <= last else []
        end = bisect_right(ranges, last, lo=begin, key=_first)
        return ranges[begin:end]

    def since(self, offset: int) -> Iterator[Range]:
        """Yield the range that has the offset, and all after it; the window must not change meanwhile."""
        return islice(self._ranges, self._index(offset), None)

    def exactly(self, first: int, last: int) -> list[Range]:
        """Return the ranges of these offsets, split so that they have no others; they must be in the window."""
        self._split(first)
        self._split(last + 1)
        return self.overlapping(first, last)

    def join(self, first: int, last: int) -> None:
        """Join ranges that are alike, from the neighbour before `first` to the one after `last`."""
        ranges = self._ranges
        begin = max(self._index(first) - 1, 0)
        end = min(bisect_right(ranges, last, lo=begin, key=_first) + 1, len(ranges))
        if end - begin < 2:
            return
        joined = [ranges[begin]]
        for each in ranges[begin + 1 : end]:
            if joined[-1].is_like(each):
                joined[-1].last = each.last
            else:
                joined.append(each)
        if len(joined) < end - begin:
            ranges[begin:end] = joined

    def advance(self) -> bool:
        """Move the start past all records at the window's beginning that are completed; return whether it moved."""
        ranges, count = self._ranges, 0
        for each in ranges:
            if each.state not in TERMINAL:
                break
            count += 1
        if not count:
            return False
        self.start = ranges[count - 1].last + 1
        del ranges[:count]
        return True

    def cut_before(self, offset: int) -> None:
        """Move the start to `offset`, whatever the state of the records before it."""
        if offset >= self.next_offset:
            self._ranges.clear()
        elif offset > self.start:
            self._split(offset)
            del self._ranges[: self._index(offset)]
        self.start = max(self.start, offset)

    def _index(self, offset: int) -> int:
        """Return the index of the range that has the offset, or of the first one after it."""
        index = bisect_right(self._ranges, offset, key=_first) - 1
        return index if index >= 0 and self._ranges[index].last >= offset else index + 1

    def _split(self, offset: int) -> None:
        """Split the range that contains `offset` there, if there is one."""
        index = self._index(offset)
        if index < len(self._ranges) and self._ranges[index].first < offset:
            whole = self._ranges[index]
            self._ranges.insert(index + 1, whole.part(offset, whole.last))
            whole.last = offset - 1
