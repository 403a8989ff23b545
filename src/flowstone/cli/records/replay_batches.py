"""The batches of a range of offsets as a client would send them, for a replay.

A batch is sent as its original bytes, with its keys, headers, timestamps and compression, without decoding. Its records
are put into new batches only if necessary: if part of it is outside the range, if compaction has left gaps, if it has
the broker's timestamps, or if it spans more time than a replay with a speed may send at once. Aborted records and
control batches are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from flowstone.arrow.transactions import AbortedTransactions
from flowstone.client import Cluster
from flowstone.types import TopicPartition
from flowstone.wire.batch_slices import RawRecord, pack_records, raw_records
from flowstone.wire.record_batch import (
    CHECKSUM_START,
    CODEC_MASK,
    NO_PARTITION_LEADER_EPOCH,
    BatchHeader,
    CorruptBatch,
    checksum_matches,
    parse_header,
    prefix,
)

_ATTRIBUTES = Struct(">h")


class Sendable(NamedTuple):
    """A batch for a producer; `next_offset` is where the source continues."""

    partition: int
    timestamp_ms: int  # of its first record
    batch: bytearray
    record_count: int
    next_offset: int


class Reader:
    def __init__(self, cluster: Cluster, topic_id: bytes | None, span_ms_max: float | None) -> None:
        """`span_ms_max` is the maximum time span of records that are sent together; None: no limit."""
        self._cluster, self._topic_id, self._span_ms_max = cluster, topic_id, span_ms_max

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterator[Sendable]:
        """Yield the records from `start` to `end`, exclusive, as batches.

        Raises ClientError, a TopicRecreated if the topic has another id by now, or CorruptBatch.
        """
        transactions = AbortedTransactions()
        for fetched in self._cluster.fetch(partition, start, end, read_committed=True, topic_id=self._topic_id):
            transactions.add(fetched.aborted)
            position = 0
            while position < len(fetched.records):
                header = parse_header(fetched.records, position)
                if not checksum_matches(fetched.records, position, header):
                    raise CorruptBatch(f"{partition}: the batch at offset {header.base_offset} is damaged")
                batch = fetched.records[position : position + header.size_bytes]
                position += header.size_bytes
                if not transactions.leaves_out(header) and header.record_count:
                    yield from self._sendable(partition.partition, header, batch, start, end)

    def _sendable(
        self, partition: int, header: BatchHeader, batch: memoryview, start: int, end: int
    ) -> Iterator[Sendable]:
        is_inside = start <= header.base_offset and header.next_offset <= end
        if is_inside and self._is_plain(header):
            yield Sendable(
                partition, header.base_timestamp, _as_sent(header, batch), header.record_count, header.next_offset
            )
            return
        records = [record for record in raw_records(batch) if start <= record.offset < end]
        for run in self._runs(records):
            packed = bytearray(pack_records(run, header.codec))
            yield Sendable(partition, run[0].timestamp, packed, len(run), run[-1].offset + 1)

    def _is_plain(self, header: BatchHeader) -> bool:
        span_ms = header.max_timestamp - header.base_timestamp
        return (
            header.record_count == header.last_offset_delta + 1
            and not header.uses_log_append_time
            and not header.has_delete_horizon
            and (self._span_ms_max is None or span_ms <= self._span_ms_max)
        )

    def _runs(self, records: list[RawRecord]) -> Iterator[list[RawRecord]]:
        """Yield the records in order, split where their timestamps are too far apart."""
        run: list[RawRecord] = []
        for record in records:
            if run and self._span_ms_max is not None and record.timestamp - run[0].timestamp > self._span_ms_max:
                yield run
                run = []
            run.append(record)
        if run:
            yield run


def _as_sent(header: BatchHeader, batch: memoryview) -> bytearray:
    """Return the batch with the header fields that a client sets; the producer sets its own fields and the checksum."""
    sent = bytearray(batch)
    opening = prefix(0, header.batch_length, NO_PARTITION_LEADER_EPOCH)
    sent[: len(opening)] = opening
    _ATTRIBUTES.pack_into(sent, CHECKSUM_START, header.attributes & CODEC_MASK)
    return sent
