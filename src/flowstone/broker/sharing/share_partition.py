"""SharePartition: the records of one partition that are in delivery to the members of one share group.

Pure and synchronous: no clock, no log, no network. Every record from the start offset on is in one state:

    Available --acquire--> Acquired --accept--> Acknowledged
        ^                     |--reject, gap--> Archived
        |---release, timeout--|--at the delivery count limit--> Archived

- `acquire` delivers records to a member: it counts the delivery and locks the records for a time.
- `acknowledge` is all or nothing. The records keep their lock, and nobody else may touch them, until the new state is
  durable. Then `written` applies it, or rolls back if the write failed.
- `tick` releases the records whose lock has expired, `release_member` those of a member that is gone.
- Acknowledged and archived records at the beginning of the window leave it: the start offset moves.

Writes: one at a time. `take_write` returns all changes since the last one; the owner makes them durable and calls
`written`. A release because of a timeout needs no durability, since a crash releases everything; the write only stores
the delivery counts. Acquired is never stored: the running delivery is not counted after a failover.

The window from the start offset to the last record that was ever delivered has at most `window_max` offsets before new
records are added; one stuck record therefore stops the partition once the window is full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from flowstone.broker.sharing.acknowledgements import Acknowledgement, Type
from flowstone.broker.sharing.acquisition import Acquired, Acquisition, LogBatch
from flowstone.broker.sharing.copies import Copies
from flowstone.broker.sharing.lock_queue import LockQueue, has_expired
from flowstone.broker.sharing.share_changes import Change, Reason
from flowstone.broker.sharing.share_config import ShareConfig
from flowstone.broker.sharing.spans import joined_batches, joined_spans
from flowstone.broker.sharing.window import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    TERMINAL,
    Range,
    Window,
)
from flowstone.coordinator.share.records import Delay, DeliveryState, LetterRange, StateBatch
from flowstone.errors import ApiError, ErrorCode


class SharePartition:
    def __init__(
        self,
        start_offset: int,
        batches: Sequence[StateBatch] = (),
        delays: Iterable[Delay] = (),
        config: ShareConfig | None = None,
        letters: Iterable[LetterRange] = (),
        given_up: Iterable[LetterRange] = (),
    ) -> None:
        """Create the share partition from its stored state; offsets between the batches are available.

        `letters` are records whose copies to the dead letter queue were begun: the owner finishes them. `given_up` are
        all records that are not delivered any more and need a copy, those of `letters` too.
        """
        self.config = ShareConfig() if config is None else config
        self.window = Window(start_offset)
        self.in_flight: dict[str, int] = {}  # acquired records by member
        # Whether records have become available that nobody was told of; the owner resets it.
        self.has_news = False
        self._completed = 0  # records in the window that are acknowledged or archived
        self._available_from = start_offset  # no record before it is available
        self._locks = LockQueue(self.window)
        self._delayed_until: list[int] = []  # a heap
        self._staged: list[tuple[int, int]] = []
        self._writing: list[tuple[int, int]] | None = None
        self._ticket = 1
        self._load(start_offset, batches, delays)
        self.copies = Copies(self.window)
        self.copies.load(letters)
        self.copies.load_given_up(given_up)
        self._advance()

    def _load(self, start_offset: int, batches: Sequence[StateBatch], delays: Iterable[Delay]) -> None:
        for first, last, state, count in batches:
            if last < start_offset:
                continue
            first = max(first, start_offset)
            if first > self.window.next_offset:
                self.window.append(Range(self.window.next_offset, first - 1, AVAILABLE))
            added = Range(first, last, DeliveryState(state), count)
            self.window.append(added)
            if added.state in TERMINAL:
                self._completed += len(added)
        for offset, not_before_ms in delays:
            if self.window.start <= offset < self.window.next_offset:
                for each in self.window.exactly(offset, offset):
                    if each.state is AVAILABLE:
                        each.not_before_ms = not_before_ms
                        self._delay(not_before_ms)
                self.window.join(offset, offset)

    @property
    def start_offset(self) -> int:
        return self.window.start

    @property
    def end_offset(self) -> int:
        """Return the last offset of the window."""
        return self.window.next_offset - 1

    @property
    def completed_count(self) -> int:
        return self._completed

    @property
    def has_unwritten(self) -> bool:
        return bool(self._staged) or bool(self.copies) or self._writing is not None

    # Delivery

    def next_offset(self, now_ms: int) -> int | None:
        """Return the lowest offset that may be acquired, which may not be in the log yet; None while there is none."""
        is_first, delayed_count = True, 0
        for each in self.window.since(self._available_from):
            if each.state is AVAILABLE:
                if is_first:
                    self._available_from, is_first = max(each.first, self._available_from), False
                if each.not_before_ms <= now_ms:
                    return max(each.first, self._available_from)
                delayed_count += len(each)
        if is_first:
            self._available_from = self.window.next_offset
        return self.window.next_offset if len(self.window) < self._window_max(delayed_count) else None

    def _window_max(self, delayed_count: int) -> int:
        """Return the bound of the window: records that wait for their time do not count, up to a limit."""
        window_max = self.config.window_max
        return min(window_max + delayed_count, self.config.delayed_window_max) if delayed_count else window_max

    def _delayed_count(self, now_ms: int) -> int:
        if not self._delayed_until:
            return 0
        return sum(len(each) for each in self.window if each.state is AVAILABLE and each.not_before_ms > now_ms)

    def acquire(
        self, member: str, offset: int, batches: Iterable[LogBatch], now_ms: int, max_records: int, *, strict: bool
    ) -> list[Acquired]:
        """Deliver records of the log's batches from `offset` on, which is a `next_offset`; return what is delivered.

        With `strict` there are at most `max_records`; otherwise the batch that exceeds the number is delivered whole.
        Offsets that the log does not have, markers and aborted records are archived.
        """
        window_max = self._window_max(self._delayed_count(now_ms))
        acquisition = Acquisition(self.window, window_max, self.config, member, now_ms, max_records, strict=strict)
        try:
            acquisition.run(offset, batches)
        finally:
            for first, last in acquisition.skipped:
                self._completed += last - first + 1
                self._staged.append((first, last))
            for until_ms in acquisition.delayed_until:
                self._delay(until_ms)
        acquired = acquisition.acquired
        if acquired:
            self.in_flight[member] = self.in_flight.get(member, 0) + acquisition.count
            self._locks.add(acquisition.deadline_ms, acquired[0].first, acquired[-1].last)
        self._advance()
        return acquisition.joined()

    # Acknowledgement

    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> int:
        """Stage the member's acknowledgements; return the number of the write that makes them durable, 0 for none.

        Raises ApiError, and changes nothing, unless the member has acquired all of the records.
        """
        for first, last, kind in acknowledgements:
            self._check(member, first, last, kind)
        ticket = 0
        for first, last, kind in acknowledgements:
            first = max(first, self.window.start)
            if first > last:
                continue
            if kind is Type.RENEW:
                self._renew(first, last, now_ms)
                continue
            for each in self.window.exactly(first, last):
                self._leave(each)
                each.target, each.ticket = self._target(each, kind), self._ticket
                if each.target is AVAILABLE:
                    each.not_before_ms = now_ms + self.config.backoff(each.count)
                elif each.target is ARCHIVED and kind is not Type.GAP and self.config.has_dead_letters:
                    self.copies.add(each, Reason.REJECTED if kind is Type.REJECT else Reason.DELIVERED_TOO_OFTEN)
                self._staged.append((each.first, each.last))
                ticket = self._ticket
        return ticket

    def _check(self, member: str, first: int, last: int, kind: Type) -> None:
        if last > self.end_offset:
            message = f"Offset {last} is beyond {self.end_offset}, the last that was delivered."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        if kind is Type.RENEW and not self.config.may_renew:
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, "share.renew.acknowledge.enable of the group is false.")
        if last < self.window.start:
            return
        for each in self.window.overlapping(max(first, self.window.start), last):
            if each.state is not ACQUIRED or each.owner != member or each.target is not None:
                message = f"The records from offset {max(first, each.first)} on are not acquired by this member."
                raise ApiError(ErrorCode.INVALID_RECORD_STATE, message)

    def _target(self, acquired: Range, kind: Type) -> DeliveryState:
        if kind is Type.ACCEPT:
            return ACKNOWLEDGED
        if kind is Type.RELEASE and acquired.count < self.config.delivery_count_limit:
            return AVAILABLE
        return ARCHIVED

    def _renew(self, first: int, last: int, now_ms: int) -> None:
        deadline_ms = now_ms + self.config.lock_duration_ms
        for each in self.window.exactly(first, last):
            each.deadline_ms = deadline_ms
        self.window.join(first, last)
        self._locks.add(deadline_ms, first, last)

    # Release

    def release_member(self, member: str, now_ms: int) -> None:
        """Release what the member has acquired: its session is over."""
        owned = [each for each in self.window if each.owner == member]
        for each in owned:
            if each.target is not None:
                each.owner = None  # released if the write fails
            else:
                self._release(each, now_ms)
        if owned:
            self.window.join(owned[0].first, owned[-1].last)

    def tick(self, now_ms: int) -> None:
        """Release records whose lock has expired, and note those whose delay is over."""
        for first, last in self._locks.take_due(now_ms):
            for each in self.window.overlapping(first, last):
                if has_expired(each, now_ms):
                    self._release(each, now_ms)
            self.window.join(first, last)
        while self._delayed_until and self._delayed_until[0] <= now_ms:
            heappop(self._delayed_until)
            self.has_news = True

    def next_deadline(self) -> int | None:
        """Return when `tick` must be called next, in milliseconds; it may be sooner than necessary."""
        deadlines = [self._locks.next_deadline(), *self._delayed_until[:1]]
        return min((each for each in deadlines if each is not None), default=None)

    def _release(self, each: Range, now_ms: int) -> None:
        """Make acquired records available again, or archive them at the delivery count limit."""
        self._leave(each)
        each.owner = None
        if each.count >= self.config.delivery_count_limit:
            each.target, each.ticket = ARCHIVED, self._ticket
            if self.config.has_dead_letters:
                self.copies.add(each, Reason.DELIVERED_TOO_OFTEN)
            self._staged.append((each.first, each.last))
            return
        self._staged.append((each.first, each.last))
        each.state = AVAILABLE
        each.not_before_ms = now_ms + self.config.backoff(each.count)
        self._became_available(each, now_ms)

    def copied(self, letters: Iterable[LetterRange]) -> None:
        """Archive records whose copies are durable; the next write includes them."""
        self.copies.finish(letters, self._ticket)
        self._staged += [(each.first_offset, each.last_offset) for each in letters]

    def _leave(self, each: Range) -> None:
        """Count records as no longer in flight for their owner."""
        if each.owner is None:
            return
        left = self.in_flight.get(each.owner, 0) - len(each)
        if left > 0:
            self.in_flight[each.owner] = left
        else:
            self.in_flight.pop(each.owner, None)

    def _became_available(self, each: Range, now_ms: int) -> None:
        self._available_from = min(self._available_from, each.first)
        if each.not_before_ms > now_ms:
            self._delay(each.not_before_ms)
        else:
            each.not_before_ms = 0
            self.has_news = True

    def _delay(self, until_ms: int) -> None:
        if not self._delayed_until or self._delayed_until[0] != until_ms:
            heappush(self._delayed_until, until_ms)

    # Durability

    def take_write(self) -> Change | None:
        """Return the changes to make durable, or None if there are none or a write is under way."""
        if self._writing is not None or not self._staged:
            return None
        self._writing, self._staged = joined_spans(self._staged), []
        self._ticket += 1
        start_offset = self._start_after_write()
        parts, delays, given_up, completed = [], list[Delay](), list[LetterRange](), self._completed
        for first, last in self._writing:
            if last < self.window.start:
                continue
            for each in self.window.overlapping(max(first, self.window.start), last):
                begin, end = max(each.first, first), min(each.last, last)
                target = each.target
                if each.letter_reason is not None:
                    given_up.append(LetterRange(begin, end, each.count, each.letter_reason))
                    target = None
                state, count = each.state if target is None else target, each.count
                if target in TERMINAL:
                    completed += end - begin + 1
                if state is ACQUIRED:
                    state, count = AVAILABLE, count - 1
                if end >= start_offset:
                    parts.append(StateBatch(max(begin, start_offset), end, int(state), count))
                if state is AVAILABLE and each.not_before_ms:
                    delays += [Delay(offset, each.not_before_ms) for offset in range(begin, end + 1)]
        completed -= start_offset - self.window.start
        return Change(start_offset, tuple(joined_batches(parts)), completed, tuple(delays), tuple(given_up))

    def written(self, ticket_is_durable: bool, now_ms: int) -> None:
        """Apply the changes of the write under way, or roll them back because it failed."""
        assert self._writing is not None
        spans, self._writing = self._writing, None
        for first, last in spans:
            if last < self.window.start:
                continue
            first = max(first, self.window.start)
            for each in self.window.overlapping(first, last):
                if each.target is None or each.ticket != self._ticket - 1:
                    continue
                if ticket_is_durable:
                    self._apply(each, now_ms)
                else:
                    self._roll_back(each, now_ms)
            self.window.join(first, last)
            if not ticket_is_durable:  # what needed no answer is written again
                self._staged.append((first, last))
        self._advance()

    def _apply(self, each: Range, now_ms: int) -> None:
        assert each.target is not None
        each.state, each.target, each.owner = each.target, None, None
        each.is_copied = False
        if each.state is AVAILABLE:
            self._became_available(each, now_ms)
        else:
            self._completed += len(each)

    def _roll_back(self, each: Range, now_ms: int) -> None:
        if each.is_copied:  # its copy cannot be taken back: it will be archived
            each.ticket = self._ticket
            return
        each.target, each.not_before_ms = None, 0
        if each.owner is not None:
            self.in_flight[each.owner] = self.in_flight.get(each.owner, 0) + len(each)
        if each.owner is None or each.deadline_ms <= now_ms:
            self._release(each, now_ms)

    def _start_after_write(self) -> int:
        start_offset = self.window.start
        for each in self.window:
            if each.state not in TERMINAL and (each.target not in TERMINAL or each.is_copying):
                break
            start_offset = each.last + 1
        return start_offset

    # The start

    def log_start_moved(self, offset: int) -> None:
        """Archive all records before `offset`, because the log has deleted them."""
        if offset <= self.window.start:
            return
        for each in self.window:
            if each.first >= offset:
                break
            size = min(each.last, offset - 1) - each.first + 1
            if each.state in TERMINAL:
                self._completed -= size
            elif each.owner is not None and each.target is None:
                self._leave(each.part(each.first, each.first + size - 1))
        self.window.cut_before(offset)
        self._available_from = max(self._available_from, offset)
        self._staged.append((offset, offset))
        self.has_news = True
        self._advance()

    def _advance(self) -> None:
        before = self.window.start
        if self.window.advance():
            self._completed -= self.window.start - before
            self._available_from = max(self._available_from, self.window.start)
            self.has_news = True  # the window has space again
