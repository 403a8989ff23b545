"""Batches that lie: each gets Kafka's error code, and the log's end stays where it was."""

from __future__ import annotations

import time
from random import Random
from struct import pack_into
from typing import Any

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import ErrorCode, RecordError
from flowstone.log.partition.validation import DECOMPRESSED_BYTES_MAX, check_batch
from flowstone.wire.compression import Codec, compress
from flowstone.wire.messages import FetchRequest, FetchRequestReplicaState
from flowstone.wire.record_batch import BatchHeader, Record, build_batch, encode_header, parse_header
from tests.support.wire_client import batch_of, fetch_request, frame, produce_request

MIB = 1 << 20
HEADER_BYTES = 61
NOW_MS = int(time.time() * 1000)
CORRUPT, INVALID = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD


def lie(batch: bytes, payload: bytes | None = None, **fields: Any) -> bytes:
    """The batch with other header fields, and a length and checksum that fit them."""
    header: BatchHeader = parse_header(batch)._replace(**fields)
    payload = batch[HEADER_BYTES:] if payload is None else payload
    return encode_header(header, payload) + payload


def patched(batch: bytes, layout: str, at: int, value: int) -> bytes:
    changed = bytearray(batch)
    pack_into(layout, changed, at, value)
    return bytes(changed)


GOOD = batch_of(b"one", b"two")
PAYLOAD = GOOD[HEADER_BYTES:]

# Whatever the codec: the broker reads every header.
LIES_IN_HEADERS: dict[str, tuple[bytes | None, ErrorCode]] = {
    "no records": (None, INVALID),
    "empty records": (b"", CORRUPT),
    "half a header": (GOOD[:40], CORRUPT),
    "a bad checksum": (patched(GOOD, ">I", 17, 12345), CORRUPT),
    "a flipped bit in a record": (patched(GOOD, ">B", 70, GOOD[70] ^ 1), CORRUPT),
    "message format 0": (patched(GOOD, ">b", 16, 0), INVALID),
    "message format 1": (patched(GOOD, ">b", 16, 1), INVALID),
    "message format 3": (patched(GOOD, ">b", 16, 3), CORRUPT),
    "message format -1": (patched(GOOD, ">b", 16, -1), CORRUPT),
    "a batch length of 0": (patched(GOOD, ">i", 8, 0), CORRUPT),
    "a negative batch length": (patched(GOOD, ">i", 8, -1), CORRUPT),
    "a batch length beyond the request": (patched(GOOD, ">i", 8, 1 << 30), INVALID),
    "a batch length below the records": (patched(GOOD, ">i", 8, len(GOOD) - 13), INVALID),
    "two batches": (GOOD + GOOD, INVALID),
    "bytes after the batch": (GOOD + b"\0", INVALID),
    "a base offset": (lie(GOOD, base_offset=5), INVALID),
    "a record count of 0": (lie(GOOD, record_count=0), INVALID),
    "a negative record count": (lie(GOOD, record_count=-1), INVALID),
    "a record count above the last offset delta": (lie(GOOD, record_count=3), INVALID),
    "a last offset delta above the record count": (lie(GOOD, last_offset_delta=2), INVALID),
    "a negative last offset delta": (lie(GOOD, last_offset_delta=-2, record_count=-1), INVALID),
    "a control batch": (build_batch([Record(0, NOW_MS, b"\0\0\0\1", b"")], is_control=True), INVALID),
    "a transactional batch without a transactional id": (
        batch_of(b"x", is_transactional=True),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "a producer id without a sequence": (lie(GOOD, producer_id=7, producer_epoch=0, base_sequence=-1), INVALID),
    "an unknown codec": (lie(GOOD, attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "the broker's timestamp type": (lie(GOOD, attributes=8), ErrorCode.INVALID_TIMESTAMP),
    "a time a day ahead": (lie(GOOD, base_timestamp=NOW_MS + 86_400_000), ErrorCode.INVALID_TIMESTAMP),
    "the last time there is": (lie(GOOD, base_timestamp=2**63 - 1), ErrorCode.INVALID_TIMESTAMP),
    "the first time there is": (lie(GOOD, base_timestamp=-(2**63)), ErrorCode.INVALID_TIMESTAMP),
    "more than max.message.bytes": (batch_of(bytes(MIB)), ErrorCode.MESSAGE_TOO_LARGE),
}
# Of two records, "one" and "two", each 13 bytes long with its length.
LIES_IN_RECORDS = {
    "a record fewer than stated": PAYLOAD[: len(PAYLOAD) // 2],
    "a record more than stated": PAYLOAD + PAYLOAD[: len(PAYLOAD) // 2],
    "no record": b"",
    "zeros": bytes(len(PAYLOAD)),
    "a record length beyond the batch": b"\xfe\x7f" + PAYLOAD[1:],
    "a negative record length": b"\x01" + PAYLOAD[1:],
    "a varint without an end": b"\xff" * 20,
    "an offset delta twice": PAYLOAD[: len(PAYLOAD) // 2] * 2,
    "a key longer than its record": PAYLOAD[:4] + b"\x7e" + PAYLOAD[5:],
    "a key of length -2": PAYLOAD[:4] + b"\x03" + PAYLOAD[5:],
    "a negative count of headers": PAYLOAD[:-1] + b"\x01",
    "a billion headers": PAYLOAD[:-5] + b"\xfe\xff\xff\xff\x0f",
}
# Beyond the cap; snappy does not shrink enough for that within max.message.bytes, and its zeros are no records.
BOMB_BYTES = {Codec.GZIP: 120 * MIB, Codec.SNAPPY: 15 * MIB, Codec.LZ4: 120 * MIB, Codec.ZSTD: 500 * MIB}
BOMBS = [(codec, INVALID if codec is Codec.SNAPPY else ErrorCode.MESSAGE_TOO_LARGE) for codec in BOMB_BYTES]
BOMB_PEAK_BYTES_MAX = DECOMPRESSED_BYTES_MAX * 9 // 8 + 40 * MIB


def refuse(broker, topic: str, records: bytes | None, expected: ErrorCode) -> None:
    with broker.connect() as client:
        before = client.end_offset(topic)
        for acks in (-1, 1):
            answer = client.produce(topic, records, acks)
            assert (ErrorCode(answer.error_code), answer.base_offset) == (expected, -1)
        assert client.end_offset(topic) == before


@pytest.fixture(scope="module")
def plain_topic(shared_broker):
    with shared_broker.connect() as client:
        assert client.create_topic("batches-plain") == 0
        assert client.produce("batches-plain", GOOD).error_code == 0
    return "batches-plain"


# Settings under which the broker opens batches: all but `flowstone.validation=header`.
OPENING: dict[str, dict[str, str]] = {
    "default": {},
    "compacted": {"cleanup_policy": "compact"},
    "recompressed": {"compression_type": "zstd"},
    "decompressed": {"compression_type": "uncompressed"},
}


OPENED = [(kind, codec) for kind in OPENING for codec in Codec]


@pytest.fixture(scope="module")
def opening_topics(shared_broker):
    """Topic names by the kind of their settings."""
    topics = {kind: f"batches-{kind}" for kind in OPENING}
    with shared_broker.connect() as client:
        for kind, name in topics.items():
            assert client.create_topic(name, **OPENING[kind]) == 0
            assert client.produce(name, GOOD).error_code == 0
    return topics


@pytest.mark.parametrize(("records", "expected"), LIES_IN_HEADERS.values(), ids=LIES_IN_HEADERS)
def test_a_lie_in_a_batch_header_is_refused(broker, plain_topic, records, expected):
    refuse(broker, plain_topic, records, expected)


@pytest.mark.parametrize("kind", OPENING)
@pytest.mark.parametrize(("records", "expected"), LIES_IN_HEADERS.values(), ids=LIES_IN_HEADERS)
def test_a_lie_in_a_batch_header_is_refused_where_the_broker_opens_batches(
    broker, opening_topics, kind, records, expected
):
    refuse(broker, opening_topics[kind], records, expected)


@pytest.mark.parametrize("payload", LIES_IN_RECORDS.values(), ids=LIES_IN_RECORDS)
def test_a_lie_in_uncompressed_records_is_refused(broker, plain_topic, payload):
    refuse(broker, plain_topic, lie(GOOD, payload), INVALID)


@pytest.mark.parametrize(("setting", "codec"), OPENED, ids=str)
@pytest.mark.parametrize("payload", LIES_IN_RECORDS.values(), ids=LIES_IN_RECORDS)
def test_a_lie_in_records_is_refused_where_the_broker_opens_batches(broker, opening_topics, payload, setting, codec):
    refuse(broker, opening_topics[setting], lie(GOOD, compress(codec, payload), attributes=int(codec)), INVALID)


@pytest.mark.parametrize(("setting", "codec"), [each for each in OPENED if each[1]], ids=str)
def test_bytes_that_are_not_of_their_codec_are_refused_where_the_broker_opens_batches(
    broker, opening_topics, setting, codec
):
    for payload in (b"", b"nonsense", compress(codec, PAYLOAD)[:-3]):
        refuse(broker, opening_topics[setting], lie(GOOD, payload, attributes=int(codec)), INVALID)


@pytest.mark.parametrize("codec", [each for each in Codec if each], ids=lambda codec: codec.name.lower())
def test_a_batch_that_claims_all_records_there_can_be_is_refused(broker, plain_topic, codec):
    payload = compress(codec, PAYLOAD)
    claims = {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2, "attributes": int(codec)}
    refuse(broker, plain_topic, lie(GOOD, payload, **claims), INVALID)


def test_a_topic_that_validates_headers_alone_stores_what_it_cannot_open(broker):
    with broker.connect() as client:
        assert client.create_topic("by-header", flowstone_validation="header") == 0
        assert client.produce("by-header", lie(GOOD, b"notgzip", attributes=int(Codec.GZIP))).error_code == 0


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
def test_records_without_keys_are_refused_on_a_compacted_topic(broker, codec):
    name = f"keyless-{codec.name.lower()}"
    with broker.connect() as client:
        assert client.create_topic(name, cleanup_policy="compact") == 0
    refuse(broker, name, build_batch([Record(0, NOW_MS, None, b"v")], codec=codec), INVALID)


@pytest.mark.parametrize(("codec", "expected"), BOMBS, ids=str)
def test_a_decompression_bomb_is_refused_in_bounded_memory(broker, bystander, opening_topics, codec, expected):
    records = lie(GOOD, compress(codec, bytes(BOMB_BYTES[codec])), attributes=int(codec))
    assert len(records) < MIB
    broker.forget_peak()
    before = broker.rss_bytes()
    with bystander(broker):
        refuse(broker, opening_topics["default"], records, expected)
    assert broker.peak_bytes() - before < BOMB_PEAK_BYTES_MAX


def test_many_batches_that_take_long_to_open_leave_time_to_others(broker, bystander, plain_topic, opening_topics):
    """Each is one good record of nearly all that a batch may hold: a tenth of a second for a worker."""
    slow = build_batch([Record(0, NOW_MS, None, bytes(99 * MIB))], codec=Codec.ZSTD)
    request = produce_request(plain_topic, slow, acks=1)
    request.topic_data[0].partition_data = [*request.topic_data[0].partition_data] * 12
    broker.forget_peak()
    before = broker.rss_bytes()
    with broker.connect() as client, broker.connect() as other, bystander(broker):
        client.socket.settimeout(60)
        client.send(frame(9, request))
        medium = build_batch([Record(0, NOW_MS, None, Random(1).randbytes(200_000))], codec=Codec.GZIP)
        began_s = time.monotonic()
        assert other.produce(opening_topics["default"], medium).error_code == 0
        took_s = time.monotonic() - began_s
        client.receive()
        all_took_s = time.monotonic() - began_s
    assert took_s < all_took_s / 2
    assert broker.peak_bytes() - before < BOMB_PEAK_BYTES_MAX


@pytest.mark.parametrize("acks", [2, -2, 32767, -32768])
def test_acks_that_do_not_exist_are_refused(broker, plain_topic, acks):
    with broker.connect() as client:
        before = client.end_offset(plain_topic)
        assert client.produce(plain_topic, GOOD, acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
        assert client.end_offset(plain_topic) == before


def test_no_record_may_lie_beyond_the_last_time_there_is_even_where_any_distance_is_allowed():
    payload = build_batch([Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS + 1000, b"k", b"v")])[HEADER_BYTES:]
    config = TopicConfig(message_timestamp_after_max_ms=2**63 - 1)
    with pytest.raises(RecordError):
        check_batch(lie(GOOD, payload, base_timestamp=2**63 - 10), config, NOW_MS)


@pytest.mark.parametrize("version", [4, 11, 12, 15, 16])
def test_a_client_that_poses_as_a_replica_reads_nothing(broker, plain_topic, version):
    request: FetchRequest = fetch_request(plain_topic, 0)
    if version >= 15:
        request.replica_state = FetchRequestReplicaState(replica_id=1, replica_epoch=1)
    else:
        request.replica_id = 1
    with broker.connect() as client:
        answer = client.ask(version, request)
    for partition in (each for each_topic in answer.responses for each in each_topic.partitions):
        assert partition.error_code
        assert not partition.records
