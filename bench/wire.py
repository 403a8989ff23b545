"""Protocol code of the load program: one record batch, and six requests in their last non-flexible versions.

This is deliberately separate from the broker's own codec: a shared one would share its bugs. Knows no socket and no
clock. The versions are among those that librdkafka, aiokafka or kafkajs use with both brokers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct, pack, unpack_from

from fastcrc import crc32

PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 3, 19, 20
VERSIONS = {PRODUCE: 7, FETCH: 11, LIST_OFFSETS: 1, METADATA: 1, CREATE_TOPICS: 2, DELETE_TOPICS: 1}

CLIENT_ID = "flowstone-bench"
CORRELATION_AT = 8  # in a request: after the frame's size, the API key and the version
CORRELATION = Struct(">i")

# base offset, length of what follows the length, leader epoch, magic, CRC32C of what follows the CRC
BATCH_HEAD = Struct(">qiibI")
BATCH_LENGTH_FROM = 12  # a batch's length field counts the bytes after itself
BATCH_CRC_FROM = BATCH_HEAD.size
BATCH_REST = Struct(">hiqqqhii")  # attributes, last offset delta, two timestamps, producer id, epoch, sequence, count
BATCH_HEADER_BYTES = BATCH_HEAD.size + BATCH_REST.size
MAGIC = 2

EARLIEST_TIMESTAMP = -2
REQUEST_TIMEOUT_MS = 30_000
FETCH_MAX_WAIT_MS = 500
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
NO_SESSION = (0, -1)
NEW_SESSION = (0, 0)
FETCH_MAX_BYTES = 8 << 20
PARTITION_MAX_BYTES = 1 << 20  # Kafka consumers' default

crc32c = crc32.iscsi


class UnexpectedResponse(Exception):
    """The broker responded with an error code or with unexpected bytes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """An encoded record batch that is sent repeatedly."""

    data: bytes
    records: int

    @property
    def crc(self) -> int:
        crc: int = BATCH_HEAD.unpack_from(self.data)[4]
        return crc


def record_batch(size_bytes: int, value_bytes: int, timestamp_ms: int) -> Batch:
    """Return the largest uncompressed batch within `size_bytes`: records without a key, with random values."""
    records: list[bytes] = []
    left_bytes = size_bytes - BATCH_HEADER_BYTES
    while True:
        record = _record(len(records), os.urandom(value_bytes))
        if len(record) > left_bytes:
            break
        records.append(record)
        left_bytes -= len(record)
    if not records:
        raise ValueError(f"a value of {value_bytes} bytes does not fit a batch of {size_bytes}")
    count = len(records)
    checked = BATCH_REST.pack(0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count) + b"".join(records)
    length = BATCH_HEAD.size - BATCH_LENGTH_FROM + len(checked)
    return Batch(BATCH_HEAD.pack(0, length, -1, MAGIC, crc32c(checked)) + checked, count)


def _record(offset_delta: int, value: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(offset_delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _string(text: str) -> bytes:
    return pack(">h", len(text)) + text.encode("ascii")


def request(api_key: int, body: bytes, correlation: int = 0, trailing_bytes: int = 0) -> bytes:
    """Return a framed request; `trailing_bytes` more will follow on the wire as part of the same frame."""
    message = pack(">hhi", api_key, VERSIONS[api_key], correlation) + _string(CLIENT_ID) + body
    return pack(">i", len(message) + trailing_bytes) + message


def produce_head(topic: str, partition: int, acks: int, records_bytes: int) -> bytearray:
    """Return a produce request without its records; the correlation id must be packed at CORRELATION_AT."""
    body = pack(">hhii", -1, acks, REQUEST_TIMEOUT_MS, 1) + _string(topic) + pack(">iii", 1, partition, records_bytes)
    return bytearray(request(PRODUCE, body, trailing_bytes=records_bytes))


def produce_response(topic: str) -> Struct:
    """Return the layout of a produce response for one partition.

    Its fields are frame size, correlation id, 1, topic (length, name), 1, partition, error, base offset, two times,
    throttle.
    """
    return Struct(f">iiih{len(topic)}siihqqqi")


def fetch_request(
    topic: str,
    offsets: Iterable[tuple[int, int]],
    correlation: int,
    *,
    max_wait_ms: int = FETCH_MAX_WAIT_MS,
    partition_max_bytes: int = PARTITION_MAX_BYTES,
    session: tuple[int, int] = NO_SESSION,
    isolation: int = READ_UNCOMMITTED,
) -> bytes:
    """Return a fetch from each (partition, offset); in a session (id, epoch), only changes are named."""
    partitions = [pack(">iiqqi", partition, -1, offset, -1, partition_max_bytes) for partition, offset in offsets]
    body = pack(">iiiibii", -1, max_wait_ms, 1, FETCH_MAX_BYTES, isolation, *session)
    if partitions:
        body += pack(">i", 1) + _string(topic) + pack(">i", len(partitions)) + b"".join(partitions)
    else:
        body += pack(">i", 0)
    return request(FETCH, body + pack(">i", 0) + _string(""), correlation)


def fetch_session_id(buffer: bytearray) -> int:
    session_id: int = unpack_from(">i", buffer, 10)[0]
    return session_id


def fetch_response(buffer: bytearray) -> list[tuple[int, int, int]]:
    """Return each partition of a fetch response as (partition, start of its records, end of its records)."""
    _correlation, _throttle_ms, error, _session, topics = unpack_from(">iihii", buffer)
    _expect("Fetch", error)
    at = 18
    found = []
    for _ in range(topics):
        (name_bytes,) = unpack_from(">h", buffer, at)
        (partitions,) = unpack_from(">i", buffer, at + 2 + name_bytes)
        at += 6 + name_bytes
        for _ in range(partitions):
            partition, error, _high_watermark, _last_stable, _log_start, aborted = unpack_from(">ihqqqi", buffer, at)
            _expect(f"Fetch of partition {partition}", error)
            at += 34 + 16 * max(aborted, 0) + 4
            (records_bytes,) = unpack_from(">i", buffer, at)
            begin = at + 4
            at = begin + max(records_bytes, 0)
            found.append((partition, begin, at))
    return found


def create_topic(topic: str, partitions: int) -> bytes:
    assignments = configs = 0
    body = pack(">i", 1) + _string(topic) + pack(">ihii", partitions, 1, assignments, configs)
    return request(CREATE_TOPICS, body + pack(">i?", REQUEST_TIMEOUT_MS, False))


def delete_topic(topic: str) -> bytes:
    return request(DELETE_TOPICS, pack(">i", 1) + _string(topic) + pack(">i", REQUEST_TIMEOUT_MS))


def topic_response(name: str, buffer: bytes) -> None:
    """Check the response to a CreateTopics or DeleteTopics of one topic, whose formats start alike."""
    (topics,) = unpack_from(">i", buffer, 8)
    (name_bytes,) = unpack_from(">h", buffer, 12)
    (error,) = unpack_from(">h", buffer, 14 + name_bytes)
    if topics != 1:
        raise UnexpectedResponse(f"{name} answered for {topics} topics instead of one")
    _expect(name, error)


def list_offsets(topic: str, partitions: Sequence[int]) -> bytes:
    body = pack(">ii", -1, 1) + _string(topic) + pack(">i", len(partitions))
    return request(LIST_OFFSETS, body + b"".join(pack(">iq", each, EARLIEST_TIMESTAMP) for each in partitions))


def list_offsets_errors(buffer: bytes) -> list[int]:
    """Return the error code of each partition of one topic."""
    (name_bytes,) = unpack_from(">h", buffer, 8)
    (partitions,) = unpack_from(">i", buffer, 10 + name_bytes)
    first = 14 + name_bytes
    return [unpack_from(">ih", buffer, first + 22 * index)[1] for index in range(partitions)]


def metadata() -> bytes:
    """Return a request for the brokers without topics."""
    return request(METADATA, pack(">i", 0))


def brokers_alive(buffer: bytes) -> int:
    count: int = unpack_from(">i", buffer, 4)[0]
    return count


def _expect(what: str, error: int) -> None:
    if error:
        raise UnexpectedResponse(f"{what} was answered with error code {error}")
