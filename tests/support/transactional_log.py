"""Random transactions in a log, and a model that remembers every batch and knows what a reader must see of them."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from flowstone.log.partition.partition_log import AbortedTransaction, PartitionLog
from flowstone.log.segments.batch_scan import scan
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.transaction_index_check import TransactionIndexCheck
from flowstone.wire.end_markers import end_marker, read_end_marker
from flowstone.wire.record_batch import Record, build_batch, parse_header

PRODUCERS = 4


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    producer_id: int
    epoch: int
    is_transactional: bool
    marker: bool | None = None  # whether it commits


class Open(NamedTuple):
    producer_id: int
    first_offset: int


class Model:
    """Every batch of the log; all else is worked out anew whenever it is asked for."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def transactions(self) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """Open ones, by producer, and aborted ones: producer, first offset, marker."""
        is_open, aborted = dict[int, int](), list[tuple[int, int, int]]()
        for batch in self.batches:
            if batch.marker is None and batch.is_transactional:
                is_open.setdefault(batch.producer_id, batch.base_offset)
            elif batch.marker is not None:
                first_offset = is_open.pop(batch.producer_id, None)
                if first_offset is not None and not batch.marker:
                    aborted.append((batch.producer_id, first_offset, batch.base_offset))
        return is_open, aborted

    def stable_offset(self, end: int, log_start: int) -> int:
        return min([max(first, log_start) for first in self.transactions()[0].values()] + [end])

    def epochs(self) -> dict[int, int]:
        return {batch.producer_id: batch.epoch for batch in self.batches if batch.producer_id >= 0}

    def visible(self, start: int, end: int) -> list[int]:
        """The batches, by offset, that a read_committed reader of these offsets must see."""
        is_open, aborted = self.transactions()
        aborted += [(producer_id, first_offset, end) for producer_id, first_offset in is_open.items()]
        seen = []
        for batch in self.batches:
            is_aborted = batch.is_transactional and any(
                producer_id == batch.producer_id and first <= batch.base_offset < marker
                for producer_id, first, marker in aborted
            )
            if batch.marker is None and not is_aborted and start <= batch.base_offset < end:
                seen.append(batch.base_offset)
        return seen


class TransactionWriter:
    """Producers that write to a log, in transactions and without, and the coordinator that ends these."""

    def __init__(self, log: PartitionLog, seed: int) -> None:
        self.log, self.rng, self.model = log, random.Random(seed), Model()
        self.epochs = dict.fromkeys(range(PRODUCERS), 0)
        self.time_ms = 1_700_000_000_000
        self.keys: int | None = None  # of how many keys a record has one; None: all have the same

    def batch(self, count: int, **more: Any) -> bytes:
        records = [
            Record(at, self.time_ms + at, b"%d" % self.rng.randrange(self.keys or 1), self.rng.randbytes(40))
            for at in range(count)
        ]
        return build_batch(records, **more)

    def _append(self, batch: bytes, *, is_own: bool = False, marker: bool | None = None) -> None:
        appended = self.log.append(batch, leader_epoch=0, is_own=is_own, transaction_version=1)
        header = parse_header(batch)
        self.model.batches.append(
            Batch(
                appended.base_offset,
                appended.last_offset + 1,
                header.producer_id,
                header.producer_epoch,
                header.is_transactional,
                marker,
            )
        )

    def write_transactional(self) -> None:
        producer_id = self.rng.randrange(PRODUCERS)
        self.write(producer_id, is_transactional=True)

    def write_plain(self) -> None:
        idle = set(range(PRODUCERS)) - set(self.model.transactions()[0])
        if idle and self.rng.random() < 0.5:
            self.write(self.rng.choice(sorted(idle)), is_transactional=False)
        else:
            self._append(self.batch(self.rng.randint(1, 3)))

    def write(self, producer_id: int, *, is_transactional: bool) -> None:
        epoch, count = self.epochs[producer_id], self.rng.randint(1, 3)
        known = self.log.producers.get(producer_id)
        sequence = known.batches[-1].last_sequence + 1 if known and known.epoch == epoch and known.batches else 0
        self._append(
            self.batch(
                count,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=is_transactional,
            )
        )

    def end_transaction(self) -> None:
        is_open = self.model.transactions()[0]
        if not is_open:
            return
        producer_id, is_commit = self.rng.choice(sorted(is_open)), self.rng.random() < 0.5
        self.epochs[producer_id] += self.rng.random() < 0.5  # the second protocol, or the first
        self.end(producer_id, is_commit=is_commit)

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        marker = end_marker(producer_id, self.epochs[producer_id], 3, is_commit, self.time_ms)
        self._append(marker, is_own=True, marker=is_commit)


def visible_batches(log: PartitionLog, aborted: list[AbortedTransaction], start: int, end: int) -> list[int]:
    """The batches with records that a client shows, by offset: it leaves out aborted ones as Kafka's consumer does."""
    seen, pending, aborting = [], list(aborted), set[int]()
    offset = start
    while offset < end:
        data = read_batch(log, max(offset, log.log_start_offset))
        header = parse_header(data)
        offset = header.next_offset
        while pending and pending[0].first_offset <= header.last_offset:
            aborting.add(pending.pop(0).producer_id)
        if header.is_control:
            marker = read_end_marker(data, 0, header)
            if marker is not None and not marker.is_commit:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting) and header.base_offset < end:
            seen.append(header.base_offset)
    return seen


def wrong_indexes(log: PartitionLog) -> list[str]:
    """What the check of the scrubber says of the transaction indexes of the log's sealed segments."""
    told = []
    for segment, following in pairwise([*log.segments]):
        check, file = TransactionIndexCheck(), segment.log.get()
        for position, header in scan(file, 0, segment.size_bytes, segment.base_offset):
            check.add(header, partial(file.read, position, header.size_bytes))
        told.append(check.verdict(wait_for(segment.transactions.read), segment.base_offset, following.base_offset))
    return [each for each in told if each is not None]


def read_batch(log: PartitionLog, offset: int) -> bytes:
    found = wait_for(lambda: log.read(offset, 1, log.end, at_least_one=True))
    assert found is not None
    return found.read()
