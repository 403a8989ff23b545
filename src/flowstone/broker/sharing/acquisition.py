"""Acquisition: one member gets records, those that are available again before new ones.

Records that were delivered in vain several times may include one that no consumer can handle. They are delivered in
ever smaller pieces of the batch that they came with, and the last attempt is for one record alone. So the faulty record
is archived without its neighbours (KAFKA-17541). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flowstone.broker.sharing.share_config import ShareConfig
from flowstone.broker.sharing.window import ACQUIRED, ARCHIVED, AVAILABLE, Range, Window
from flowstone.coordinator.share.records import Delay


class LogBatch(NamedTuple):
    """The offsets of one batch of the log; `is_delivered` is False for markers and aborted records.

    `delays` are the records that are not to be delivered before a time, in milliseconds since the epoch.
    """

    first: int
    last: int
    is_delivered: bool = True
    delays: tuple[Delay, ...] = ()


class Acquired(NamedTuple):
    first: int
    last: int
    delivery_count: int


class Acquisition:
    def __init__(
        self,
        window: Window,
        window_max: int,
        config: ShareConfig,
        member: str,
        now_ms: int,
        max_records: int,
        *,
        strict: bool,
    ) -> None:
        """Create an acquisition, which adds records to the window only while it has less than `window_max`."""
        self._window, self._window_max, self._config = window, window_max, config
        self._member, self._now_ms = member, now_ms
        self.deadline_ms = now_ms + config.lock_duration_ms
        self._left, self._strict = max_records, strict
        self._is_over = False
        self._newest: Range | None = None  # the range of new records that this acquisition has added
        self.count = 0
        self.acquired: list[Acquired] = []
        self.delayed_until: list[int] = []  # when records that have to wait may be delivered
        self.skipped: list[tuple[int, int]] = []  # what was archived, because there is nothing to deliver

    def run(self, offset: int, batches: Iterable[LogBatch]) -> None:
        """Acquire records of the batches from `offset` on."""
        for first, last, is_delivered, delays in batches:
            if first > offset:
                self._skip(offset, first - 1)
            offset = max(offset, last + 1)
            if not is_delivered:
                self._skip(first, last)
                continue
            if delays:
                self._delay(last, delays)
            before = len(self.acquired)
            self._acquire_batch(first, last)
            if self._is_over or (before and len(self.acquired) == before):
                break

    def _delay(self, last: int, delays: Iterable[Delay]) -> None:
        """Add the records of a batch to the window before they are delivered, since some have to wait.

        While they wait they take space for others, up to `delayed_window_max`.
        """
        window = self._window
        if len(window) < self._config.delayed_window_max and last >= window.next_offset:
            window.append(Range(window.next_offset, last, AVAILABLE))
        for offset, not_before_ms in delays:
            if not_before_ms <= self._now_ms or not window.start <= offset < window.next_offset:
                continue
            (found,) = window.overlapping(offset, offset)
            if found.state is AVAILABLE and found.not_before_ms < not_before_ms:
                for each in window.exactly(offset, offset):
                    each.not_before_ms = not_before_ms
                self.delayed_until.append(not_before_ms)

    def joined(self) -> list[Acquired]:
        """Return what was acquired, in ranges that are as long as possible."""
        joined = self.acquired[:1]
        for each in self.acquired[1:]:
            before = joined[-1]
            if before.last + 1 == each.first and before.delivery_count == each.delivery_count:
                joined[-1] = Acquired(before.first, each.last, before.delivery_count)
            else:
                joined.append(each)
        return joined

    def _acquire_batch(self, first: int, last: int) -> None:
        for each in self._window.overlapping(first, last):
            if each.state is not AVAILABLE or each.not_before_ms > self._now_ms:
                continue
            begin, end = max(each.first, first), min(each.last, last)
            size = self._piece_size(each)
            if size is not None:
                if self.acquired:
                    self._is_over = True
                    return
                end = min(end, begin + size - 1)
                self._is_over = True
            end = self._limit(begin, end)
            for part in self._window.exactly(begin, end):
                part.state, part.owner, part.not_before_ms = ACQUIRED, self._member, 0
                part.count += 1
                part.deadline_ms = self.deadline_ms
                self._add(begin, end, part.count)
            if self._is_over:
                return
        self._acquire_new(max(first, self._window.next_offset), last)
        if self._left <= 0:
            self._is_over = True

    def _acquire_new(self, first: int, last: int) -> None:
        """Deliver records that were never delivered before, if the window has space for them."""
        space = self._window_max - len(self._window)
        if first > last or space <= 0 or first > self._window.next_offset:
            return
        last = self._limit(first, last if not self._strict else min(last, first + space - 1))
        before = self._newest
        if before is not None and before.last + 1 == first:
            before.last = last
            before.batch_size = len(before)
        else:
            added = self._newest = Range(first, last, ACQUIRED, 1)
            added.owner, added.deadline_ms = self._member, self.deadline_ms
            self._window.append(added)
        self._add(first, last, 1)

    def _piece_size(self, available: Range) -> int | None:
        """Return how many records to deliver at most, because former deliveries failed; None: no limit."""
        count, from_count = available.count, self._config.pieces_from
        if count < from_count:
            return None
        if count >= self._config.delivery_count_limit - 1:
            return 1
        return max(available.batch_size >> (count - from_count + 1), 1)

    def _skip(self, first: int, last: int) -> None:
        """Archive the offsets that are available or new: there is nothing to deliver."""
        for each in self._window.overlapping(first, last):
            if each.state is AVAILABLE:
                begin, end = max(each.first, first), min(each.last, last)
                for part in self._window.exactly(begin, end):
                    part.state = ARCHIVED
                self._window.join(begin, end)
                self.skipped.append((begin, end))
        first = max(first, self._window.next_offset)
        if first == self._window.next_offset and first <= last:
            self._window.append(Range(first, last, ARCHIVED))
            self.skipped.append((first, last))

    def _limit(self, first: int, last: int) -> int:
        """Return the last offset that may be taken."""
        return min(last, first + self._left - 1) if self._strict else last

    def _add(self, first: int, last: int, delivery_count: int) -> None:
        self.acquired.append(Acquired(first, last, delivery_count))
        self.count += last - first + 1
        self._left -= last - first + 1
        if self._strict and self._left <= 0:
            self._is_over = True
