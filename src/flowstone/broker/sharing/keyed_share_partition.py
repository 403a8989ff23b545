"""KeyedSharePartition: a share partition that delivers the records of each key one after the other, in offset order.

One rule: a record may be acquired if it is available, its delay is over, and no record with its key and a lower offset
is unfinished. A record is finished when it is durably acknowledged or archived. So a key has at most one record in
delivery, and the next one follows only when that is certain to come never again, also across releases, lost
connections, crashes and failovers. Other keys are not held up. Records without a key are free; the empty key is a key.

The keys of the records from the start offset on must be indexed before they can be acquired, `lookahead` offsets at
most. A key is known by a hash of 64 bits, which is different in each process; two keys with the same hash are only
delivered one after the other. The index is rebuilt when the share partition is loaded. Pure.

What may be acquired is kept as spans of offsets. Each record in one is the head of its key until it is finished, and is
checked for its state and delay when it is taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from flowstone.broker.sharing.acquisition import Acquired
from flowstone.broker.sharing.key_index import KeyIndex
from flowstone.broker.sharing.share_config import ShareConfig
from flowstone.broker.sharing.share_partition import SharePartition
from flowstone.broker.sharing.spans import Span, count_of, spans_of
from flowstone.broker.sharing.window import ACQUIRED, ARCHIVED, AVAILABLE, TERMINAL, Range
from flowstone.coordinator.share.records import Delay, LetterRange, StateBatch

# Ranges in a response: clients compare each record with each range.
ACQUIRED_MAX = 500


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
        self._keys = KeyIndex(start_offset)
        super().__init__(start_offset, batches, delays, config, letters, given_up)
        self._ready: list[Span] = []  # a heap of heads that may be acquirable
        self._later: list[tuple[int, int, int]] = []  # a heap of (time, first, last) of heads that are delayed
        self.ready_count = 0  # about how many records may be acquired
        self.indexed_to = self.window.start

    @property
    def may_index(self) -> bool:
        """Return whether there is space for more records in the index."""
        return self.indexed_to - self.window.start < self.config.lookahead

    # The index

    def index(self, first: int, last: int, keys: Sequence[int], delays: Iterable[Delay], now_ms: int) -> None:
        """Add the records of the log's next batch: for each offset the number of its key, 0 if the log lacks it."""
        self.indexed_to = max(self.indexed_to, self.window.start)  # what is completed needs no index
        if last < self.indexed_to:
            return
        if first > self.indexed_to:
            self._archive(self.indexed_to, first - 1)
        begin = max(first, self.indexed_to)
        keys = keys[begin - first :]
        new_from = self.window.next_offset
        if last >= new_from:
            self.window.append(Range(new_from, last, AVAILABLE))
        if 0 in keys:
            for gap in spans_of([offset for offset, key in enumerate(keys, begin) if not key]):
                self._archive(*gap)
        for offset, not_before_ms in delays:
            if offset >= begin:
                self._add_delay(offset, not_before_ms, now_ms)
        if begin < new_from:
            keys = self._unfinished(begin, keys)
        self._offer(self._keys.add(begin, keys))
        self.indexed_to = last + 1
        self._advance()

    def _add_delay(self, offset: int, not_before_ms: int, now_ms: int) -> None:
        (found,) = self.window.overlapping(offset, offset)
        if found.state is AVAILABLE and not_before_ms > max(now_ms, found.not_before_ms):
            for each in self.window.exactly(offset, offset):
                each.not_before_ms = not_before_ms

    def _unfinished(self, begin: int, keys: Sequence[int]) -> list[int]:
        """Return the keys without those of finished records, which a state that was loaded may have."""
        unfinished = list(keys)
        for each in self.window.overlapping(begin, begin + len(keys) - 1):
            if each.state in TERMINAL:
                for offset in range(max(each.first, begin), min(each.last, begin + len(keys) - 1) + 1):
                    unfinished[offset - begin] = 0
        return unfinished

    def _archive(self, first: int, last: int) -> None:
        """Archive offsets that the log does not have."""
        if last >= self.window.next_offset:
            self.window.append(Range(self.window.next_offset, last, AVAILABLE))
        first = max(first, self.window.start)
        for each in self.window.exactly(first, last):
            if each.state is AVAILABLE:
                each.state = ARCHIVED
                self._completed += len(each)
        self.window.join(first, last)
        self._staged.append((first, last))

    def _offer(self, heads: Iterable[Span]) -> None:
        for each in heads:
            heapq.heappush(self._ready, each)
            self.ready_count += each[1] - each[0] + 1
            self.has_news = True

    # Delivery

    def candidates(self, now_ms: int, count: int) -> list[Span]:
        """Return the lowest offsets that may be acquired now, `count` at most; give back those that are not.

        There are none while `window_max` records are in delivery. Below that a request gets all that it wants: many
        members that fetch more than their share would get ever smaller remainders otherwise.
        """
        if sum(self.in_flight.values()) >= self.config.window_max:
            return []
        while self._later and self._later[0][0] <= now_ms:
            self._offer([heapq.heappop(self._later)[1:]])
        found: list[Span] = []
        while self._ready and count > 0 and len(found) < ACQUIRED_MAX:
            first, last = heapq.heappop(self._ready)
            self.ready_count -= last - first + 1
            first = max(first, self.window.start)
            if first > last:
                continue
            for each in self.window.overlapping(first, last):
                begin, end = max(each.first, first), min(each.last, last)
                if each.state is not AVAILABLE:
                    continue
                if each.not_before_ms > now_ms:
                    heapq.heappush(self._later, (each.not_before_ms, begin, end))
                    self._delay(each.not_before_ms)
                    continue
                if count <= 0 or len(found) >= ACQUIRED_MAX:
                    self._offer([(begin, end)])
                    continue
                taken_to = min(end, begin + count - 1)
                if taken_to < end:
                    self._offer([(taken_to + 1, end)])
                count -= taken_to - begin + 1
                if found and found[-1][1] + 1 == begin:
                    found[-1] = found[-1][0], taken_to
                else:
                    found.append((begin, taken_to))
        return found

    def give_back(self, spans: Iterable[Span]) -> None:
        """Return candidates that were not acquired."""
        had_news = self.has_news
        self._offer(spans)
        self.has_news = had_news

    def archive_missing(self, spans: Iterable[Span]) -> None:
        """Archive candidates that compaction has removed from the log."""
        for first, last in spans:
            self._archive(first, last)
            self._finish(first, last)
        self._advance()

    def acquire_spans(self, member: str, spans: Sequence[Span], now_ms: int) -> list[Acquired]:
        """Deliver candidates to a member."""
        deadline_ms = now_ms + self.config.lock_duration_ms
        acquired = []
        for first, last in spans:
            for each in self.window.exactly(first, last):
                assert each.state is AVAILABLE
                each.state, each.owner, each.not_before_ms = ACQUIRED, member, 0
                each.count += 1
                each.deadline_ms = deadline_ms
                acquired.append(Acquired(each.first, each.last, each.count))
        if acquired:
            self.in_flight[member] = self.in_flight.get(member, 0) + count_of(spans)
            self._locks.add(deadline_ms, spans[0][0], spans[-1][1])
        return acquired

    # Changes

    def _apply(self, each: Range, now_ms: int) -> None:
        super()._apply(each, now_ms)
        if each.state in TERMINAL:
            self._finish(each.first, each.last)

    def _became_available(self, each: Range, now_ms: int) -> None:
        super()._became_available(each, now_ms)
        if each.not_before_ms > now_ms:
            heapq.heappush(self._later, (each.not_before_ms, each.first, each.last))
        else:
            self._offer([(each.first, each.last)])

    def log_start_moved(self, offset: int) -> None:
        before = self.window.start
        if offset > before:
            self._finish(before, min(offset, self.indexed_to) - 1)
            self.indexed_to = max(self.indexed_to, offset)
        super().log_start_moved(offset)

    def _finish(self, first: int, last: int) -> None:
        """Let the next records of the keys of finished ones follow."""
        self._offer(self._keys.finish(first, last))

    def _advance(self) -> None:
        super()._advance()
        self._keys.drop_before(self.window.start)
