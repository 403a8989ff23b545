"""Reads of a share partition's records: the batches of the log from an offset on, and slices of them by reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from flowstone.broker.sharing.acquisition import Acquired, LogBatch
from flowstone.broker.sharing.delays import DELIVER_AFTER_BYTES, not_before_ms
from flowstone.broker.sharing.reads.recent_batches import RecentBatches
from flowstone.broker.sharing.spans import Span
from flowstone.coordinator.share.records import Delay
from flowstone.errors import ApiError
from flowstone.log.segments.cached_reads import LogSlice, NotCached, read_cached
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.wire.end_markers import END_MARKER_BYTES_MAX, read_end_marker
from flowstone.wire.record_batch import HEADER_BYTES, BatchHeader, decode_records, parse_header, read_payload

# Short slices are read at once, of longer ones each header.
WHOLE_READ_BYTES = 16 << 10
# A slice of so many bytes is sent without the records that were not acquired, if these are the greater part.
CUT_BYTES_MIN, CUT_BYTES_MAX = 8 << 10, 2 << 20
# A reader of committed records looks up the aborted transactions of everything that it reads.
COMMITTED_READ_BYTES = 1 << 20


class _Place(NamedTuple):
    """The position of a batch, in bytes from the beginning of the slice."""

    first: int
    last: int
    begin: int
    end: int


class LogRead:
    """The batches that follow an offset; iterating reads their headers, as far as the caller needs them."""

    def __init__(
        self,
        partition: Partition,
        reader: Reader,
        records: LogSlice,
        offset: int,
        end_offset: int,
        recent: RecentBatches | None,
    ) -> None:
        self._partition, self._reader, self._recent = partition, reader, recent
        self._records, self._offset, self._end_offset = records, offset, end_offset
        self._places: list[_Place] = []
        self._data: bytes | None = None  # of the whole slice, if it was read at once

    def read_whole(self) -> None:
        """Read all batches at once, which is cheaper if all are needed. Raises NotCached."""
        self._data = self._bytes(0, self._records.count)

    def __iter__(self) -> Iterator[LogBatch]:
        """Yield the batches, in order, as far as the page cache has them.

        Raises NotCached if it lacks a batch before the first one that is delivered: nothing is acquired by then.
        """
        may_raise = True
        batches = self._batches()
        while True:
            try:
                batch = next(batches, None)
            except NotCached:
                if may_raise:
                    raise
                return
            if batch is None:
                return
            may_raise = may_raise and not batch.is_delivered
            yield batch

    def _batches(self) -> Iterator[LogBatch]:
        aborts = None
        if self._reader is Reader.COMMITTED:
            found = self._partition.local.aborted_transactions(self._offset, self._end_offset, self._records)
            aborts = _Aborts(found)
        for header, begin in self._headers():
            self._places.append(_Place(header.base_offset, header.last_offset, begin, begin + header.size_bytes))
            is_delivered = not header.is_control and bool(header.record_count)
            if aborts is not None and aborts.has(header, lambda at=begin: self._bytes(at, END_MARKER_BYTES_MAX)):
                is_delivered = False
            delays: tuple[Delay, ...] = ()
            if is_delivered:
                delays = self._delays(header, begin)
            yield LogBatch(header.base_offset, header.last_offset, is_delivered, delays)

    def _delays(self, header: BatchHeader, begin: int) -> tuple[Delay, ...]:
        find = partial(self._find_delays, header, begin)
        if self._recent is None:
            return find()
        return self._recent.delays(header.base_offset, header.size_bytes, find)

    def _find_delays(self, header: BatchHeader, begin: int) -> tuple[Delay, ...]:
        """Return which records of a batch are to be delivered later; most batches are only searched for the header."""
        data = self._bytes(begin, header.size_bytes)
        try:
            payload = read_payload(data, 0, header) if header.codec else data
            if DELIVER_AFTER_BYTES not in (payload if isinstance(payload, bytes) else bytes(payload)):
                return ()
            found = ((record.offset, not_before_ms(record.headers)) for record in decode_records(data))
            return tuple(Delay(offset, until_ms) for offset, until_ms in found if until_ms)
        except ApiError:  # a damaged batch delays nothing
            return ()

    def records_of(self, acquired: Sequence[Acquired]) -> LogSlice | bytes:
        """Return the batches from the first to the last record that is acquired, by reference.

        If members divide a large batch, most of it is not for this one: then the result is a copy without the rest.
        """
        first, last = acquired[0].first, acquired[-1].last
        places = [each for each in self._places if each.last >= first and each.first <= last]
        begin, end = places[0].begin, places[-1].end
        whole = LogSlice(self._records.file, self._records.position + begin, end - begin)
        wanted = sum(each.last - each.first + 1 for each in acquired)
        is_mostly_wanted = 2 * wanted > places[-1].last - places[0].first
        if is_mostly_wanted or not CUT_BYTES_MIN <= len(whole) <= CUT_BYTES_MAX:
            return whole
        spans = [(each.first, each.last) for each in acquired]
        try:
            return b"".join([self._only(place, spans) for place in places])
        except NotCached:
            return whole

    def _only(self, place: _Place, spans: Sequence[tuple[int, int]]) -> bytes:
        """Return the batch without records outside of the spans, or the whole batch if that cannot be done."""
        overlapping = [each for each in spans if each[1] >= place.first and each[0] <= place.last]
        if not overlapping:
            return b""
        return self._cut(place, overlapping) or self._bytes(place.begin, place.end - place.begin)

    def _cut(self, place: _Place, spans: Sequence[tuple[int, int]]) -> bytes | None:
        size = place.end - place.begin
        read = partial(self._bytes, place.begin, size)
        return None if self._recent is None else self._recent.only(place.first, size, spans, read)

    def only(self, spans: Sequence[Span]) -> bytes | None:
        """Return the batch that was yielded last with only these records; None if it has to be sent whole."""
        return self._cut(self._places[-1], spans)

    def bytes_of(self, first: int) -> bytes:
        """Return the bytes of the batch at an offset, which was the last one yielded. Raises NotCached."""
        place = self._places[-1]
        assert place.first == first
        return self._bytes(place.begin, place.end - place.begin)

    def _headers(self) -> Iterator[tuple[BatchHeader, int]]:
        """Yield the header and the place of each batch that is whole."""
        position, count = 0, self._records.count
        if count <= WHOLE_READ_BYTES:
            data = self._bytes(0, count)
            while count - position >= HEADER_BYTES:
                header = parse_header(data, position)
                if position + header.size_bytes > count:
                    return
                yield header, position
                position += header.size_bytes
            return
        while count - position >= HEADER_BYTES:
            header = parse_header(self._bytes(position, HEADER_BYTES))
            if position + header.size_bytes > count:
                return
            yield header, position
            position += header.size_bytes

    def _bytes(self, position: int, count: int) -> bytes:
        if self._data is not None:
            return self._data[position : position + count]
        count = min(count, self._records.count - position)
        return read_cached(self._records.file, self._records.position + position, count)


class _Aborts:
    """Tells the batches of aborted transactions, going through the log in order."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._left = sorted(aborted, key=lambda each: each[1], reverse=True)
        self._open: set[int] = set()  # producers in an aborted transaction

    def has(self, header: BatchHeader, read: object) -> bool:
        """Return whether the batch belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        while self._left and self._left[-1][1] <= header.last_offset:
            self._open.add(self._left.pop()[0])
        if header.is_control:
            assert callable(read)
            data = read()
            marker = read_end_marker(data, 0, parse_header(data))
            if marker is not None and not marker.is_commit:
                self._open.discard(header.producer_id)
            return False
        return header.producer_id in self._open


def read_log(
    partition: Partition, reader: Reader, offset: int, max_bytes: int, recent: RecentBatches | None
) -> LogRead | None:
    """Return the batches from the one that has `offset` on, or None if there are none yet.

    Raises NotCached if the bytes must be read by a worker, ApiError if the offset is out of range or the replica is
    offline or closed.
    """
    local = partition.local
    end_offset = local.visible_end(reader)
    if offset >= end_offset:
        local.check_serving()
        return None
    if reader is Reader.COMMITTED:
        max_bytes = min(max_bytes, COMMITTED_READ_BYTES)
    records = local.read(offset, max_bytes, end_offset, at_least_one=True)
    return None if records is None else LogRead(partition, reader, records, offset, end_offset, recent)
