"""KeyedSharePartition: a share partition that delivers the records of each key one after the other, in offset order.

One rule: a record may be acquired if it is available, its delay is over, and no record with its key and a lower offset
is unfinished. A record is finished when it is durably acknowledged or archived. So a key has at most one record in
delivery, and the next one follows only when that is certain to come never again, also across releases, lost
connections, crashes and failovers. Other keys are not held up. Records without a key are free; the empty key is a key.

The keys of the records from the start offset on must be indexed before they can be acquired, `lookahead` offsets at
most. A key is known by a hash of 64 bits, which is different in each process; two keys with the same hash are only
delivered one after the other. The index is rebuilt when the share partition is loaded. Pure.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flowstone.broker.sharing.acquisition import Acquired
from flowstone.broker.sharing.share_config import ShareConfig
from flowstone.broker.sharing.share_partition import SharePartition
from flowstone.broker.sharing.spans import joined_spans
from flowstone.broker.sharing.window import ACQUIRED, ARCHIVED, AVAILABLE, TERMINAL, Range
from flowstone.coordinator.share.records import Delay, LetterRange, StateBatch

# Ranges in a response: clients compare each record with each range.
ACQUIRED_MAX = 500


class KeyedRecord(NamedTuple):
    """The hash of a record's key, None without one, and the time from which the record may be delivered."""

    offset: int
    key_hash: int | None
    not_before_ms: int = 0


class KeyedSharePartition(SharePartition):
    def __init__(
        self,
        start_offset: int,
        batches: Sequence[StateBatch] = (),
        delays: Iterable[Delay] = (),
        config: ShareConfig | None = None,
        letters: Iterable[LetterRange] = (),
        given_up: Iterable[LetterRange] = (),
    ) -> None:
        super().__init__(start_offset, batches, delays, config, letters, given_up)
        self._hashes: dict[int, int] = {}  # by offset, of unfinished records
        self._queues: dict[int, deque[int]] = {}  # unfinished records by hash, in order
        self._ready: list[int] = []  # a heap of offsets that may be acquirable; each is checked when it is used
        self._later: list[tuple[int, int]] = []  # a heap of (time, offset) of records that are delayed
        self.indexed_to = self.window.start

    @property
    def ready_count(self) -> int:
        """Return about how many records may be acquired."""
        return len(self._ready)

    @property
    def may_index(self) -> bool:
        """Return whether there is space for more records in the index."""
        return self.indexed_to - self.window.start < self.config.lookahead

    # The index

    def index(self, first: int, last: int, records: Sequence[KeyedRecord], now_ms: int) -> None:
        """Add the records of the log's next batch; offsets that it does not have are archived."""
        self.indexed_to = max(self.indexed_to, self.window.start)  # what is completed needs no index
        if last < self.indexed_to:
            return
        if first > self.indexed_to:
            self._archive(self.indexed_to, first - 1)
        expected = max(first, self.indexed_to)
        new_from = self.window.next_offset
        if last >= new_from:
            self.window.append(Range(new_from, last, AVAILABLE))
        for offset, key_hash, not_before_ms in records:
            if offset < expected:
                continue
            if offset > expected:
                self._archive(expected, offset - 1)
            expected = offset + 1
            if not_before_ms or offset < new_from:
                self._add(offset, key_hash, not_before_ms, now_ms)
            else:
                self._enqueue(offset, key_hash)
        if expected <= last:
            self._archive(expected, last)
        self.indexed_to = max(last + 1, self.indexed_to)
        self._advance()

    def _add(self, offset: int, key_hash: int | None, not_before_ms: int, now_ms: int) -> None:
        (found,) = self.window.overlapping(offset, offset)
        if found.state in TERMINAL:
            return
        if not_before_ms > max(now_ms, found.not_before_ms):
            for each in self.window.exactly(offset, offset):
                each.not_before_ms = not_before_ms
        self._enqueue(offset, key_hash)

    def _enqueue(self, offset: int, key_hash: int | None) -> None:
        if key_hash is None:
            self._offer(offset)
            return
        self._hashes[offset] = key_hash
        queue = self._queues.get(key_hash)
        if queue is None:
            self._queues[key_hash] = deque((offset,))
            self._offer(offset)
        else:
            queue.append(offset)

    def _archive(self, first: int, last: int) -> None:
        """Archive offsets that the log does not have."""
        if last >= self.window.next_offset:
            self.window.append(Range(self.window.next_offset, last, AVAILABLE))
        for each in self.window.exactly(max(first, self.window.start), last):
            if each.state is AVAILABLE:
                each.state = ARCHIVED
                self._completed += len(each)
        self.window.join(first, last)
        self._staged.append((first, last))

    def _offer(self, offset: int) -> None:
        heapq.heappush(self._ready, offset)
        self.has_news = True

    # Delivery

    def candidates(self, now_ms: int, count: int) -> list[int]:
        """Return the lowest offsets that may be acquired now, `count` at most; give back those that are not."""
        count = min(count, self.config.window_max - sum(self.in_flight.values()))
        while self._later and self._later[0][0] <= now_ms:
            heapq.heappush(self._ready, heapq.heappop(self._later)[1])
        found: list[int] = []
        range_count = 0
        each: Range | None = None  # the range of the offset before, which mostly has this one too
        while self._ready and len(found) < count and range_count < ACQUIRED_MAX:
            offset = heapq.heappop(self._ready)
            if (found and found[-1] == offset) or not self._is_head(offset):
                continue
            if each is None or not each.first <= offset <= each.last:
                (each,) = self.window.overlapping(offset, offset)
            if each.state is not AVAILABLE:
                continue
            if each.not_before_ms > now_ms:
                heapq.heappush(self._later, (each.not_before_ms, offset))
                self._delay(each.not_before_ms)
                continue
            range_count += not found or found[-1] + 1 < offset
            found.append(offset)
        return found

    def give_back(self, offsets: Iterable[int]) -> None:
        """Return candidates that were not acquired."""
        for offset in offsets:
            heapq.heappush(self._ready, offset)

    def archive_missing(self, offsets: Iterable[int]) -> None:
        """Archive candidates that compaction has removed from the log."""
        for offset in offsets:
            self._archive(offset, offset)
            self._finish(offset, offset)
        self._advance()

    def acquire_offsets(self, member: str, offsets: Sequence[int], now_ms: int) -> list[Acquired]:
        """Deliver candidates to a member."""
        deadline_ms = now_ms + self.config.lock_duration_ms
        acquired = []
        for first, last in joined_spans([(offset, offset) for offset in offsets]):
            for each in self.window.exactly(first, last):
                assert each.state is AVAILABLE
                each.state, each.owner, each.not_before_ms = ACQUIRED, member, 0
                each.count += 1
                each.deadline_ms = deadline_ms
                acquired.append(Acquired(each.first, each.last, each.count))
        if acquired:
            self.in_flight[member] = self.in_flight.get(member, 0) + len(offsets)
            self._locks.add(deadline_ms, offsets[0], offsets[-1])
        return acquired

    def _is_head(self, offset: int) -> bool:
        if not self.window.start <= offset < self.window.next_offset:
            return False
        key_hash = self._hashes.get(offset)
        return key_hash is None or self._queues[key_hash][0] == offset

    # Changes

    def _apply(self, each: Range, now_ms: int) -> None:
        super()._apply(each, now_ms)
        if each.state in TERMINAL:
            self._finish(each.first, each.last)

    def _became_available(self, each: Range, now_ms: int) -> None:
        super()._became_available(each, now_ms)
        for offset in range(each.first, each.last + 1):
            if each.not_before_ms > now_ms:
                heapq.heappush(self._later, (each.not_before_ms, offset))
            else:
                heapq.heappush(self._ready, offset)

    def log_start_moved(self, offset: int) -> None:
        before = self.window.start
        if offset > before:
            self._finish(before, min(offset, self.indexed_to) - 1)
            self.indexed_to = max(self.indexed_to, offset)
        super().log_start_moved(offset)

    def _finish(self, first: int, last: int) -> None:
        """Let the next records of the keys of finished ones follow."""
        for offset in range(first, last + 1):
            key_hash = self._hashes.pop(offset, None)
            if key_hash is None:
                continue
            queue = self._queues[key_hash]
            if queue[0] == offset:
                queue.popleft()
                if queue:
                    self._offer(queue[0])
                else:
                    del self._queues[key_hash]
            else:  # a record that retention deletes in the middle of a queue cannot be: its head is older
                queue.remove(offset)
