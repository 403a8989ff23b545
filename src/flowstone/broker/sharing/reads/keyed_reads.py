"""Reads for share partitions that deliver by key: the keys of the next records, and the batches of chosen records."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from flowstone.broker.sharing.delays import not_before_ms
from flowstone.broker.sharing.keyed_share_partition import KeyedRecord, KeyedSharePartition
from flowstone.broker.sharing.reads.log_reads import LogRead, read_log
from flowstone.broker.sharing.reads.recent_batches import RecentBatches
from flowstone.errors import ApiError
from flowstone.log.segments.cached_reads import NotCached
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.wire.record_batch import decode_records

# The bytes that are read at a time for the index, and the records that one call indexes: some milliseconds.
INDEX_READ_BYTES = 64 << 10
INDEX_RECORDS_MAX = 2_000
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
    left = INDEX_RECORDS_MAX
    while machine.ready_count < wanted and machine.may_index:
        if left <= 0:
            return True
        found = read_log(partition, reader, machine.indexed_to, INDEX_READ_BYTES, recent)
        if found is None:
            return False
        before = machine.indexed_to
        for batch in found:
            if batch.last < machine.indexed_to:
                continue
            records = _keyed(found.bytes_of(batch.first)) if batch.is_delivered else []
            machine.index(batch.first, batch.last, records, now_ms)
            left -= max(len(records), 1)
            if left <= 0:
                break
        if machine.indexed_to == before:
            return False
    return False


def _keyed(batch: bytes) -> list[KeyedRecord]:
    try:
        records = decode_records(batch)
    except ApiError:  # a damaged batch: consumers cannot read it either, and skip it as gaps
        return []
    return [
        KeyedRecord(record.offset, None if record.key is None else hash(record.key), not_before_ms(record.headers))
        for record in records
    ]


class ChosenRecords(NamedTuple):
    """The batches that hold chosen offsets, the offsets that they hold, and those that the log does not have."""

    data: bytes
    covered: list[int]
    missing: list[int]


def read_offsets(
    partition: Partition, reader: Reader, recent: RecentBatches | None, offsets: Sequence[int], max_bytes: int
) -> ChosenRecords:
    """Return the batches of chosen records, in order.

    With `recent`, a batch is without its other records if these are the greater part.

    They are not all if the batches exceed `max_bytes`, beyond the first one. Raises NotCached if a worker must read
    the first one.
    """
    chosen = _Chosen(deque(offsets), max_bytes)
    for _ in range(READS_MAX):
        if chosen.is_full:
            break
        try:
            found = read_log(partition, reader, chosen.left[0], INDEX_READ_BYTES, recent)
            if found is None:
                break
            before = len(chosen.left)
            chosen.take_from(found)
            if len(chosen.left) == before:
                break
        except NotCached:
            if not chosen.covered:
                raise
            break
    return ChosenRecords(b"".join(chosen.parts), chosen.covered, chosen.missing)


class _Chosen:
    def __init__(self, offsets: deque[int], max_bytes: int) -> None:
        self.left, self._max_bytes = offsets, max_bytes
        self.parts: list[bytes] = []
        self.covered: list[int] = []
        self.missing: list[int] = []
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        return not self.left or (bool(self.covered) and self._size_bytes >= self._max_bytes)

    def take_from(self, found: LogRead) -> None:
        """Take the batches with chosen records, up to the first one without."""
        left = self.left
        for batch in found:
            while left and left[0] < batch.first:
                self.missing.append(left.popleft())
            if not left or left[0] > batch.last:
                return  # the next chosen record is farther away
            wanted = list(takewhile(batch.last.__ge__, left))
            is_mostly_wanted = WANTED_PART * len(wanted) > batch.last - batch.first
            data = None if is_mostly_wanted else found.only(wanted)
            if data is None:
                data = found.bytes_of(batch.first)
            if self.covered and self._size_bytes + len(data) > self._max_bytes:
                self._size_bytes = self._max_bytes
                return
            self.parts.append(data)
            self._size_bytes += len(data)
            self.covered += wanted
            for _ in wanted:
                left.popleft()
