"""Reads for share partitions that deliver by key: the keys of the next records, and the batches of chosen records."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from flowstone.broker.sharing.key_index import key_of_none
from flowstone.broker.sharing.keyed_share_partition import KeyedSharePartition
from flowstone.broker.sharing.reads.log_reads import LogRead, read_log
from flowstone.broker.sharing.reads.recent_batches import RecentBatches
from flowstone.broker.sharing.spans import Span, count_of
from flowstone.errors import ApiError
from flowstone.kernel import hash_keys
from flowstone.log.segments.cached_reads import NotCached
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.wire.record_batch import HEADER_BYTES, parse_header, read_payload

# The bytes that are read at a time for the index, and the offsets that one call indexes: some milliseconds.
INDEX_READ_BYTES = 64 << 10
INDEX_OFFSETS_MAX = 10_000
# Reads of scattered records for one response.
READS_MAX = 64
# A batch is sent whole if more than one in so many of its records are wanted.
WANTED_PART = 2


def index_more(
    machine: KeyedSharePartition,
    partition: Partition,
    reader: Reader,
    recent: RecentBatches,
    now_ms: int,
    wanted: int,
) -> bool:
    """Index records of the log until about `wanted` may be acquired; return whether more could be indexed later.

    Raises NotCached if a worker must read first.
    """
    left = INDEX_OFFSETS_MAX
    while machine.ready_count < wanted and machine.may_index:
        if left <= 0:
            return True
        found = read_log(partition, reader, machine.indexed_to, INDEX_READ_BYTES, recent)
        if found is None:
            return False
        found.read_whole()
        before = machine.indexed_to
        for batch in found:
            first, last, is_delivered, delays = batch
            if last < machine.indexed_to:
                continue
            size = last - first + 1
            keys = _keys(found.bytes_of(first), first, size) if is_delivered else [0] * size
            machine.index(first, last, keys, delays, now_ms)
            left -= size
            if left <= 0 or machine.ready_count >= wanted:
                break
        if machine.indexed_to == before:
            return False
    return False


def _keys(batch: bytes, first: int, size: int) -> Sequence[int]:
    """Return the number of the key for each of a batch's offsets, 0 for offsets without a record."""
    header = parse_header(batch)
    try:
        payload = bytes(read_payload(batch, 0, header)) if header.codec else batch
    except ApiError:  # a damaged batch: consumers cannot read it either, and skip it as gaps
        return [0] * size
    begin = 0 if header.codec else HEADER_BYTES
    found = hash_keys(payload, begin, len(payload) - begin, header.record_count)
    if found is None or (found.deltas and found.deltas[-1] >= size):
        return [0] * size
    deltas, hashes = found
    if 0 in hashes:
        hashes = [each or key_of_none(first + delta) for delta, each in zip(deltas, hashes, strict=True)]
    if len(hashes) == size:
        return hashes
    keys = [0] * size
    for delta, each in zip(deltas, hashes, strict=True):
        keys[delta] = each
    return keys


class ChosenRecords(NamedTuple):
    """The batches that hold chosen records, the spans of those that they hold, and of those that the log lacks."""

    data: bytes
    covered: list[Span]
    missing: list[Span]


def read_spans(
    partition: Partition, reader: Reader, recent: RecentBatches | None, spans: Sequence[Span], max_bytes: int
) -> ChosenRecords:
    """Return the batches of chosen records, in order.

    With `recent`, a batch is without its other records if these are the greater part.

    They are not all if the batches exceed `max_bytes`, beyond the first one. Raises NotCached if a worker must read
    the first one.
    """
    chosen = _Chosen(deque(spans), max_bytes)
    for _ in range(READS_MAX):
        if chosen.is_full:
            break
        try:
            found = read_log(partition, reader, chosen.left[0][0], INDEX_READ_BYTES, recent)
            if found is None or not chosen.take_from(found):
                break
        except NotCached:
            if not chosen.covered:
                raise
            break
    return ChosenRecords(b"".join(chosen.parts), chosen.covered, chosen.missing)


class _Chosen:
    def __init__(self, spans: deque[Span], max_bytes: int) -> None:
        self.left, self._max_bytes = spans, max_bytes
        self.parts: list[bytes] = []
        self.covered: list[Span] = []
        self.missing: list[Span] = []
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        return not self.left or (bool(self.covered) and self._size_bytes >= self._max_bytes)

    def take_from(self, found: LogRead) -> bool:
        """Take the batches with chosen records, up to the first one without; return whether there was any progress."""
        had_progress = False
        for batch in found:
            skipped = self._before(batch.first)
            self.missing += skipped
            wanted = self._up_to(batch.last)
            had_progress = had_progress or bool(skipped or wanted)
            if not wanted:
                break  # the next chosen record is farther away
            is_mostly_wanted = WANTED_PART * count_of(wanted) > batch.last - batch.first
            data = None if is_mostly_wanted else found.only(wanted)
            if data is None:
                data = found.bytes_of(batch.first)
            if self.covered and self._size_bytes + len(data) > self._max_bytes:
                self._size_bytes = self._max_bytes
                self.left.extendleft(reversed(wanted))
                break
            self.parts.append(data)
            self._size_bytes += len(data)
            self._cover(wanted)
        return had_progress

    def _before(self, offset: int) -> list[Span]:
        return self._up_to(offset - 1)

    def _up_to(self, offset: int) -> list[Span]:
        """Take the chosen records up to an offset out of those that are left."""
        left, taken = self.left, list[Span]()
        while left and left[0][0] <= offset:
            first, last = left.popleft()
            if last > offset:
                left.appendleft((offset + 1, last))
                last = offset
            taken.append((first, last))
        return taken

    def _cover(self, wanted: list[Span]) -> None:
        covered = self.covered
        if covered and covered[-1][1] + 1 == wanted[0][0]:
            covered[-1] = covered[-1][0], wanted[0][1]
            del wanted[0]
        covered += wanted
