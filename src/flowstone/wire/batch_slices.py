"""Extraction of parts of record batches as new batches, for branches and replays that start or end inside a batch.

Keys, values and headers are copied as bytes without decoding. The batches come from a peer: an invalid one raises
`CorruptBatch`.
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
    """A record whose key, value and headers are not decoded."""

    offset: int
    timestamp: int
    body: bytes


def cut_batch(batch: Bytes, end_offset: int) -> bytes:
    """Return the batch without its records from `end_offset` on, which must be inside the batch.

    The rest of the header is unchanged, so the batch still has its producer and sequence numbers.
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
    """Return the batch's records with their timestamps as readers see them."""
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
    """Return a batch as a client sends it: offsets from 0 without gaps, no producer id, the records' timestamps."""
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
    """Yield each record's start, offset delta, timestamp delta, start of its body, and end."""
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
