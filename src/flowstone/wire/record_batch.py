"""Record batches, format 2: the 61-byte header, its checksum, and the records.

Owns the layout. The broker uses only the header (`parse_header`, `checksum_matches`, `prefix`, `encode_header`),
without a loop over records. `decode_records` and `build_batch` loop over records, for tools and internal topics.

A batch starts with its base offset. Its first 16 bytes (base offset, length, leader epoch) are not part of the
checksum, so a broker may replace them. The bytes come from a peer: an invalid batch raises `CorruptBatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from flowstone.errors import ApiError, ErrorCode
from flowstone.types import Bytes
from flowstone.wire.compression import Codec, compress, decompress

HEADER_BYTES = 61
LOG_OVERHEAD = 12  # base offset and length, which batch_length does not include
PREFIX_BYTES = 16  # not covered by the checksum; a broker replaces these bytes
MAGIC = 2
MAGIC_POSITION = 16
CHECKSUM_START = 21
BATCH_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD
PAYLOAD_BYTES_MAX = 100 << 20  # default limit: the maximum size of a request

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_PARTITION_LEADER_EPOCH = -1
_NO_PRODUCER = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
SEQUENCE_MAX = (1 << 31) - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

_HEADER = Struct(">qiibIhiqqqhii")
_PREFIX = Struct(">qii")
prefix: Callable[[int, int, int], bytes] = _PREFIX.pack  # of base offset, batch length, leader epoch
_MAGIC_AND_CHECKSUM = Struct(">bI")
_CHECKED_HEADER = Struct(">hiqqqhii")  # the header from CHECKSUM_START on
_CODECS = tuple(Codec)
_NO_ATTRIBUTES = b"\0"  # of a record: there are none yet
_NO_HEADERS = b"\0"
_NULL_LENGTH = -1
# Lengths and deltas from 0 up to this have precomputed varints: those of small records and their batches.
READY_VARINTS_COUNT = 1024
VARINT_BITS = 32
VARLONG_BITS = 64


class CorruptBatch(ApiError):
    """The bytes are not a valid batch of the current format."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE) -> None:
        super().__init__(code, message)


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        try:
            return _CODECS[self.attributes & CODEC_MASK]
        except IndexError:
            number = self.attributes & CODEC_MASK
            raise CorruptBatch(f"no codec {number}", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE) from None

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """Return whether the base timestamp is the time until which compaction keeps the batch's tombstones."""
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def uses_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def last_sequence(self) -> int:
        """Return the last record's sequence number; 0 follows 2^31 - 1."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


RecordHeaders = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()


def parse_header(view: Bytes, position: int = 0) -> BatchHeader:
    """Return the header at `position`. The batch may be incomplete: compare `size_bytes` with the available bytes."""
    if len(view) - position < HEADER_BYTES:
        # A message of an old format can be shorter than the current header: report the format, not the length.
        if len(view) - position > MAGIC_POSITION:
            _check_magic(view[position + MAGIC_POSITION])
        raise CorruptBatch(f"{len(view) - position} bytes are too few for a batch header")
    header = BatchHeader._make(_HEADER.unpack_from(view, position))
    if header.magic != MAGIC:
        _check_magic(header.magic)
    if header.batch_length < BATCH_LENGTH_MIN:
        raise CorruptBatch(f"batch length {header.batch_length} is below {BATCH_LENGTH_MIN}")
    return header


def _check_magic(magic: int) -> None:
    """Raise the error that Kafka 4 uses: INVALID_RECORD for formats it dropped, CORRUPT_MESSAGE for unknown ones."""
    if magic in (0, 1):
        raise CorruptBatch(f"message format {magic} is not supported, only {MAGIC}", ErrorCode.INVALID_RECORD)
    if magic != MAGIC:
        raise CorruptBatch(f"no message format {magic}")


def compute_crc(view: Bytes, position: int, size_bytes: int) -> int:
    """Return the CRC32C of the batch of `size_bytes` at `position`, without a copy."""
    crc: int = crc32c(memoryview(view)[position + CHECKSUM_START : position + size_bytes])
    return crc


def checksum_matches(view: Bytes, position: int, header: BatchHeader) -> bool:
    """Return whether the batch is complete and its checksum is correct."""
    size_bytes = header.size_bytes
    return position + size_bytes <= len(view) and compute_crc(view, position, size_bytes) == header.crc


def encode_header(header: BatchHeader, payload: Bytes) -> bytes:
    """Return the 61 bytes of `header` with the length and checksum for `payload`; the header's own are ignored."""
    return _complete_header(
        header.base_offset, header.partition_leader_epoch, _CHECKED_HEADER.pack(*header[5:]), payload
    )


def _complete_header(base_offset: int, partition_leader_epoch: int, checked: bytes, payload: Bytes) -> bytes:
    return b"".join(
        (
            prefix(base_offset, BATCH_LENGTH_MIN + len(payload), partition_leader_epoch),
            _MAGIC_AND_CHECKSUM.pack(MAGIC, crc32c(payload, crc32c(checked))),
            checked,
        )
    )


def stamp(header: BatchHeader, log_append_time: int) -> BatchHeader:
    """Return the header with LogAppendTime: readers then use max_timestamp for every record."""
    return header._replace(attributes=header.attributes | LOG_APPEND_TIME_FLAG, max_timestamp=log_append_time)


def rewrite(
    batch: Bytes,
    *,
    codec: Codec | None = None,
    level: int | None = None,
    log_append_time: int | None = None,
    max_bytes: int = PAYLOAD_BYTES_MAX,
) -> bytes:
    """Return the batch with another codec for its payload, with LogAppendTime, or both, without decoding records."""
    header = parse_header(batch)
    payload: Bytes = _stored_payload(batch, 0, header)
    if codec is not None and codec is not header.codec:
        payload = compress(codec, decompress(header.codec, payload, max_bytes), level)
        header = header._replace(attributes=header.attributes & ~CODEC_MASK | codec)
    if log_append_time is not None:
        header = stamp(header, log_append_time)
    return b"".join((encode_header(header, payload), payload))


def read_payload(view: Bytes, position: int, header: BatchHeader, max_bytes: int = PAYLOAD_BYTES_MAX) -> Bytes:
    """Return the batch's records, decompressed. Raises DecompressError if the payload is invalid."""
    return decompress(header.codec, _stored_payload(view, position, header), max_bytes)


def _stored_payload(view: Bytes, position: int, header: BatchHeader) -> memoryview:
    if position + header.size_bytes > len(view):
        raise CorruptBatch(f"the batch at {header.base_offset} is cut off")
    return memoryview(view)[position + HEADER_BYTES : position + header.size_bytes]


def decode_records(view: Bytes, position: int = 0, max_bytes: int = PAYLOAD_BYTES_MAX) -> list[Record]:
    """Return the records of one batch. The caller must verify the checksum."""
    header = parse_header(view, position)
    payload = read_payload(view, position, header, max_bytes)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_timestamp = header.max_timestamp if header.uses_log_append_time else None
    records = []
    at = 0
    try:
        for _ in range(header.record_count):
            record, at = _decode_record(payload, at, base_offset, base_timestamp, append_timestamp)
            records.append(record)
    except IndexError:
        raise CorruptBatch("the payload ends inside a record") from None
    if at != len(payload):
        raise CorruptBatch(f"{len(payload) - at} bytes after the last record")
    return records


def _decode_record(
    payload: Bytes, at: int, base_offset: int, base_timestamp: int, append_timestamp: int | None
) -> tuple[Record, int]:
    length, at = read_varint(payload, at)
    end = at + length
    timestamp_delta, at = read_varint(payload, at + 1, VARLONG_BITS)  # + 1: the record's attributes, unused
    offset_delta, at = read_varint(payload, at)
    key, at = _read_bytes(payload, at)
    value, at = _read_bytes(payload, at)
    headers: RecordHeaders = ()
    if payload[at]:
        headers, at = _read_headers(payload, at)
    else:
        at += 1
    if at != end:
        raise CorruptBatch(f"a record's fields do not fill the {length} bytes it states")
    timestamp = base_timestamp + timestamp_delta if append_timestamp is None else append_timestamp
    return Record(base_offset + offset_delta, timestamp, key, value, headers), at


def _read_headers(payload: Bytes, at: int) -> tuple[RecordHeaders, int]:
    count, at = read_varint(payload, at)
    if count < 0:
        raise CorruptBatch(f"a record with {count} headers")
    headers = []
    for _ in range(count):
        key, at = _read_bytes(payload, at)
        value, at = _read_bytes(payload, at)
        if key is None:
            raise CorruptBatch("a record header without a key")
        headers.append((key.decode(errors="replace"), value))
    return tuple(headers), at


def _read_bytes(payload: Bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(payload, at)
    if length < 0:
        return None, at
    end = at + length
    if end > len(payload):
        raise IndexError
    return bytes(payload[at:end]), end


def read_varint(payload: Bytes, at: int, bits: int = VARINT_BITS) -> tuple[int, int]:
    raw = payload[at]
    if raw < 0x80:  # most have one byte, nearly all others two
        return (raw >> 1) ^ -(raw & 1), at + 1
    second = payload[at + 1]
    if second < 0x80:
        raw = raw & 0x7F | second << 7
        return (raw >> 1) ^ -(raw & 1), at + 2
    raw = 0
    for shift in range(0, bits, 7):
        byte = payload[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80 and not raw >> bits:
            return (raw >> 1) ^ -(raw & 1), at
    raise CorruptBatch(f"a varint of more than {bits} bits")


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Return a batch of `records`, whose offsets increase from `base_offset`; the first timestamp is the base."""
    assert records, "a batch holds at least one record"
    base_timestamp = max_timestamp = records[0].timestamp
    encoded = []
    last_delta = -1
    for offset, timestamp, key, value, headers in records:
        delta = offset - base_offset
        assert delta > last_delta, f"offset {offset} after {base_offset + last_delta}"
        last_delta = delta
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        encoded.append(encode_record(delta, timestamp - base_timestamp, key, value, headers))
    payload = b"".join(encoded)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=partition_leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=codec | (TRANSACTIONAL_FLAG if is_transactional else 0) | (CONTROL_FLAG if is_control else 0),
        last_offset_delta=last_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    stored = compress(codec, payload, level)
    return encode_header(header, stored) + stored


def join_records(records: Sequence[bytes], timestamp: int, producer: tuple[int, int] | None = None) -> bytes:
    """Return a batch of encoded records with the offset deltas 0, 1, 2 and so on and the same timestamp."""
    assert records, "a batch holds at least one record"
    payload, count = b"".join(records), len(records)
    attributes = 0 if producer is None else TRANSACTIONAL_FLAG
    producer_id, producer_epoch = producer or _NO_PRODUCER
    checked = _CHECKED_HEADER.pack(
        attributes, count - 1, timestamp, timestamp, producer_id, producer_epoch, NO_SEQUENCE, count
    )
    return _complete_header(0, NO_PARTITION_LEADER_EPOCH, checked, payload) + payload


def encode_record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: RecordHeaders = ()
) -> bytes:
    """Return one encoded record; its deltas are relative to its batch's base offset and base timestamp."""
    varints = VARINTS
    parts = (
        _NO_ATTRIBUTES,
        varints[timestamp_delta],
        varints[offset_delta],
        varints[_NULL_LENGTH if key is None else len(key)],
        key or b"",
        varints[_NULL_LENGTH if value is None else len(value)],
        value or b"",
        _encode_headers(headers) if headers else _NO_HEADERS,
    )
    body = b"".join(parts)
    return varints[len(body)] + body


def _encode_headers(headers: RecordHeaders) -> bytes:
    parts = [VARINTS[len(headers)]]
    for name, value in headers:
        key = name.encode()
        parts += (VARINTS[len(key)], key, VARINTS[_NULL_LENGTH if value is None else len(value)], value or b"")
    return b"".join(parts)


class _Varints(dict[int, bytes]):
    """Table of encoded varints: common numbers are looked up, others encoded."""

    def __missing__(self, value: int) -> bytes:
        raw = (value << 1) ^ (value >> (VARLONG_BITS - 1))
        varint = bytearray()
        while raw > 0x7F:
            varint.append(raw & 0x7F | 0x80)
            raw >>= 7
        varint.append(raw)
        return bytes(varint)


VARINTS = _Varints()
VARINTS.update({value: VARINTS[value] for value in range(_NULL_LENGTH, READY_VARINTS_COUNT)})
