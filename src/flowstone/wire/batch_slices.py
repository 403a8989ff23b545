"""Parts of record batches, as batches of their own: for topics that are branched or replayed from amid a batch.

Keys, values and headers are passed on as the bytes they are. A batch's bytes are a peer's as ever: `CorruptBatch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flowstone.types import Bytes
from flowstone.wire.compression import Codec, compress
from flowstone.wire.record_batch import (
    MAGIC,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    VARINTS,
    VARLONG_BITS,
    BatchHeader,
    CorruptBatch,
    encode_header,
    parse_header,
    read_payload,
    read_varint,
)

_NO_ATTRIBUTES = b"\0"  # of a record: there are none yet


class RawRecord(NamedTuple):
    """A record whose key, value and headers nobody has looked at."""

    offset: int
    timestamp: int
    body: bytes


def cut_batch(batch: Bytes, end_offset: int) -> bytes:
    """The batch without its records from `end_offset` on, which lies in it: its offsets end there.

    All else is as it was, so that the records' producer and its sequence numbers are still told.
    """
    header = parse_header(batch)
    assert header.base_offset < end_offset <= header.last_offset
    payload = read_payload(batch, 0, header)
    end, count, newest = 0, 0, header.base_timestamp
    for begin, offset_delta, timestamp_delta, _body, after in _walk(payload, header.record_count):
        if header.base_offset + offset_delta >= end_offset:
            end = begin
            break
        end, count = after, count + 1
        newest = max(newest, header.base_timestamp + timestamp_delta)
    kept = compress(header.codec, payload[:end])
    cut = header._replace(
        last_offset_delta=end_offset - 1 - header.base_offset,
        max_timestamp=header.max_timestamp if header.uses_log_append_time else newest,
        record_count=count,
    )
    return encode_header(cut, kept) + kept


def raw_records(batch: Bytes) -> list[RawRecord]:
    """The batch's records, each with the time that readers are told."""
    header = parse_header(batch)
    payload = read_payload(batch, 0, header)
    stamped = header.max_timestamp if header.uses_log_append_time else None
    return [
        RawRecord(
            header.base_offset + offset_delta,
            header.base_timestamp + timestamp_delta if stamped is None else stamped,
            bytes(payload[body:after]),
        )
        for _begin, offset_delta, timestamp_delta, body, after in _walk(payload, header.record_count)
    ]


def pack_records(records: Sequence[RawRecord], codec: Codec) -> bytes:
    """A batch as a client sends it: offsets from 0 on without a gap, no producer yet, the records' own timestamps."""
    assert records, "a batch holds at least one record"
    base_timestamp = records[0].timestamp
    parts: list[bytes] = []
    for delta, record in enumerate(records):
        head = _NO_ATTRIBUTES + VARINTS[record.timestamp - base_timestamp] + VARINTS[delta]
        parts += (VARINTS[len(head) + len(record.body)], head, record.body)
    payload = compress(codec, b"".join(parts))
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_PARTITION_LEADER_EPOCH,
        magic=MAGIC,
        crc=0,
        attributes=codec,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=len(records),
    )
    return encode_header(header, payload) + payload


def _walk(payload: Bytes, record_count: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Of each record: where it begins, its offset and timestamp deltas, where its body begins, where it ends."""
    after = 0
    for _ in range(record_count):
        begin = after
        try:
            length, at = read_varint(payload, begin)
            after = at + length
            timestamp_delta, at = read_varint(payload, at + len(_NO_ATTRIBUTES), VARLONG_BITS)
            offset_delta, at = read_varint(payload, at)
        except IndexError:
            raise CorruptBatch("the payload ends inside a record") from None
        if not at <= after <= len(payload):
            raise CorruptBatch(f"a record of {length} bytes cannot be at {begin}")
        yield begin, offset_delta, timestamp_delta, at, after
