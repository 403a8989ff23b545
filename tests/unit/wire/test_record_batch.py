"""Headers, checksums and rewriting of our own; then our batches in two clients' parsers, and theirs in ours."""

from __future__ import annotations

import contextlib
import warnings
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.errors import ErrorCode
from flowstone.wire.compression import Codec, DecompressError
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    PREFIX_BYTES,
    READY_VARINTS_COUNT,
    SEQUENCE_MAX,
    CorruptBatch,
    Record,
    build_batch,
    checksum_matches,
    compute_crc,
    decode_records,
    encode_header,
    encode_record,
    join_records,
    parse_header,
    prefix,
    read_payload,
    rewrite,
    stamp,
)

RECORDS = [
    Record(40, 1_700_000_000_500, b"k", b"value" * 20),
    Record(41, 1_700_000_000_900, None, b"", (("a", b"1"), ("b", None))),
    Record(42, 1_700_000_000_000, b"", None, (("grüße", b"\x00\xff"),)),
]

every_codec = pytest.mark.parametrize("codec", list(Codec))


def some_batch(codec: Codec = Codec.NONE, **fields: Any) -> bytes:
    return build_batch(RECORDS, base_offset=40, codec=codec, **fields)


def test_a_header_says_what_the_batch_was_built_with() -> None:
    batch = some_batch(
        Codec.LZ4, partition_leader_epoch=3, producer_id=7, producer_epoch=2, base_sequence=11, is_transactional=True
    )
    header = parse_header(batch)

    assert header.base_offset == 40
    assert header.batch_length == len(batch) - LOG_OVERHEAD
    assert header.size_bytes == len(batch)
    assert header.partition_leader_epoch == 3
    assert header.magic == 2
    assert (header.last_offset_delta, header.last_offset, header.next_offset) == (2, 42, 43)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_500, 1_700_000_000_900)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 2, 11, 13)
    assert header.record_count == 3
    assert header.codec is Codec.LZ4
    assert (header.is_transactional, header.is_control, header.uses_log_append_time) == (True, False, False)


def test_a_header_is_parsed_at_its_position_in_any_buffer() -> None:
    batch = some_batch()
    data = b"xyz" + batch

    for buffer in (data, bytearray(data), memoryview(data), memoryview(bytearray(data))):
        header = parse_header(buffer, 3)
        assert header == parse_header(batch)
        assert checksum_matches(buffer, 3, header)
        assert decode_records(buffer, 3) == RECORDS


def test_a_header_alone_parses_without_its_payload() -> None:
    assert parse_header(some_batch()[:HEADER_BYTES]).record_count == 3


@pytest.mark.parametrize("size", [0, 16, 17, HEADER_BYTES - 1])
def test_too_few_bytes_for_a_header_are_corrupt(size: int) -> None:
    with pytest.raises(CorruptBatch) as caught:
        parse_header(some_batch()[:size])
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_batch_length_below_the_header_is_corrupt(length: int) -> None:
    batch = prefix(0, length, 0) + some_batch()[PREFIX_BYTES:]
    with pytest.raises(CorruptBatch) as caught:
        parse_header(batch)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("magic", "code"),
    [(0, ErrorCode.INVALID_RECORD), (1, ErrorCode.INVALID_RECORD), (3, ErrorCode.CORRUPT_MESSAGE)],
)
@pytest.mark.parametrize("size", [34, 200])
def test_another_format_is_answered_as_kafka_does(magic: int, code: ErrorCode, size: int) -> None:
    batch = bytearray(some_batch()[:size])
    batch[16] = magic
    with pytest.raises(CorruptBatch) as caught:
        parse_header(batch)
    assert caught.value.code is code


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_unsupported(number: int) -> None:
    header = parse_header(some_batch())._replace(attributes=number)
    with pytest.raises(CorruptBatch) as caught:
        assert header.codec
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_sequence_numbers_wrap_to_zero() -> None:
    assert parse_header(some_batch(base_sequence=SEQUENCE_MAX - 2)).last_sequence == SEQUENCE_MAX
    assert parse_header(some_batch(base_sequence=SEQUENCE_MAX - 1)).last_sequence == 0
    assert parse_header(some_batch(base_sequence=SEQUENCE_MAX)).last_sequence == 1
    assert parse_header(some_batch()).last_sequence == -1


def test_the_checksum_misses_no_byte_after_the_prefix_and_sees_none_in_it() -> None:
    batch = bytearray(some_batch())
    header = parse_header(batch)
    for position in range(len(batch)):
        batch[position] ^= 0x01
        covered = position > PREFIX_BYTES  # the checksum's own bytes, and all after them
        stored = int.from_bytes(batch[17:21], "big")
        assert (compute_crc(batch, 0, header.size_bytes) == stored) is not covered
        batch[position] ^= 0x01


def test_a_batch_that_is_cut_off_does_not_match_its_checksum() -> None:
    batch = some_batch()
    header = parse_header(batch)
    assert checksum_matches(batch, 0, header)
    assert not checksum_matches(batch[:-1], 0, header)


def test_a_new_prefix_leaves_the_checksum_valid() -> None:
    batch = some_batch()
    moved = prefix(1_000, len(batch) - LOG_OVERHEAD, 9) + batch[PREFIX_BYTES:]
    header = parse_header(moved)

    assert (header.base_offset, header.partition_leader_epoch) == (1_000, 9)
    assert checksum_matches(moved, 0, header)
    assert [record.offset for record in decode_records(moved)] == [1_000, 1_001, 1_002]


@every_codec
def test_records_come_back_as_they_were(codec: Codec) -> None:
    assert decode_records(some_batch(codec)) == RECORDS


values = st.none() | st.binary(max_size=200)
timestamps = st.integers(0, 2**62)
headers = st.lists(st.tuples(st.text(max_size=8), values), max_size=3).map(tuple)


@given(
    rows=st.lists(st.tuples(st.integers(1, 100), timestamps, values, values, headers), min_size=1, max_size=20),
    codec=st.sampled_from(list(Codec)),
)
@settings(max_examples=150, deadline=None)
def test_any_records_come_back_also_with_gaps_between_offsets(rows: list[tuple[Any, ...]], codec: Codec) -> None:
    offset, records = 0, []
    for gap, *fields in rows:
        offset += gap
        records.append(Record(offset, *fields))
    batch = build_batch(records, base_offset=records[0].offset, codec=codec)

    assert checksum_matches(batch, 0, parse_header(batch))
    assert decode_records(batch) == records


@pytest.mark.parametrize("size_bytes", [0, 63, 64, READY_VARINTS_COUNT - 1, READY_VARINTS_COUNT, 8191, 8192, 1 << 20])
def test_a_length_of_any_number_of_bytes_is_read_back(size_bytes: int) -> None:
    records = [Record(0, 0, bytes(size_bytes), bytes(size_bytes), (("h" * 70, bytes(size_bytes)),))]
    assert decode_records(build_batch(records)) == records


def test_records_joined_are_the_batch_they_would_be_built_into() -> None:
    records = [Record(offset, 17, b"k%d" % offset, None if offset % 2 else b"v") for offset in range(200)]
    encoded = [encode_record(record.offset, 0, record.key, record.value) for record in records]
    assert join_records(encoded, 17) == build_batch(records)


@given(
    edits=st.lists(st.tuples(st.integers(HEADER_BYTES, 10_000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 300),
)
@settings(max_examples=200, deadline=None)
def test_damaged_records_raise_nothing_but_their_own_error(edits: list[tuple[int, int]], cut: int) -> None:
    batch = bytearray(some_batch())
    for position, byte in edits:
        batch[min(position, len(batch) - 1)] = byte
    with contextlib.suppress(CorruptBatch):
        decode_records(batch)
    with contextlib.suppress(CorruptBatch):
        decode_records(batch[:cut])


def test_a_payload_above_the_cap_is_not_decoded() -> None:
    batch = build_batch([Record(0, 0, None, bytes(1 << 20))], codec=Codec.ZSTD)
    with pytest.raises(DecompressError):
        decode_records(batch, max_bytes=1 << 16)


@every_codec
@pytest.mark.parametrize("target", list(Codec))
def test_rewriting_changes_the_codec_and_nothing_else(codec: Codec, target: Codec) -> None:
    batch = some_batch(codec, producer_id=5, producer_epoch=1, base_sequence=8, is_transactional=True)
    rewritten = rewrite(batch, codec=target)
    old, new = parse_header(batch), parse_header(rewritten)

    assert new.codec is target
    assert new.size_bytes == len(rewritten)
    assert checksum_matches(rewritten, 0, new)
    assert decode_records(rewritten) == RECORDS
    same = {"batch_length": old.batch_length, "crc": old.crc, "attributes": old.attributes}
    assert new._replace(**same) == old


@every_codec
def test_log_append_time_overrides_every_timestamp(codec: Codec) -> None:
    stamped = rewrite(some_batch(codec), log_append_time=123_456)
    header = parse_header(stamped)

    assert header.uses_log_append_time
    assert header.max_timestamp == 123_456
    assert header.codec is codec
    assert checksum_matches(stamped, 0, header)
    assert {record.timestamp for record in decode_records(stamped)} == {123_456}


def test_a_stamped_header_fits_the_untouched_payload() -> None:
    batch = some_batch()
    payload = memoryview(batch)[HEADER_BYTES:]
    stamped = encode_header(stamp(parse_header(batch), 99), payload)

    assert len(stamped) == HEADER_BYTES
    assert stamped + bytes(payload) == rewrite(batch, log_append_time=99)


def test_rewriting_a_batch_that_is_cut_off_is_refused() -> None:
    with pytest.raises(CorruptBatch):
        rewrite(some_batch()[:-1], codec=Codec.ZSTD)


@every_codec
def test_the_payload_is_the_same_under_every_codec(codec: Codec) -> None:
    batch = some_batch(codec)
    assert read_payload(batch, 0, parse_header(batch)) == some_batch()[HEADER_BYTES:]


class Client:
    """A client library's parser and builder of batches."""

    def __init__(self, package: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in a deprecated way
            self.codec = import_module(f"{package}.codec")
            self.memory_records = import_module(f"{package}.record.memory_records")
            self.default_records = import_module(f"{package}.record.default_records")


CLIENTS = {"kafka-python": Client("kafka"), "aiokafka": Client("aiokafka")}
every_client_and_codec = pytest.mark.parametrize(
    ("client", "codec"),
    [
        pytest.param(client, codec, id=f"{name}-{codec.name.lower()}")
        for name, client in CLIENTS.items()
        for codec in Codec
        # kafka-python reads snappy only with a library that nothing else here needs
        if codec is not Codec.SNAPPY or client.codec.has_snappy()
    ],
)


def many_records() -> list[Record]:
    """Enough for several blocks of every codec."""
    return [
        Record(
            index, 1_700_000_000_000 + index * 7 % 1000, None if index % 5 == 0 else b"%d" % index, b"v" * (index % 700)
        )
        for index in range(400)
    ] + [Record(400, 1_700_000_000_001, b"k", None, (("h", b"1"), ("null", None)))]


@every_client_and_codec
def test_a_client_reads_our_batch(client: Client, codec: Codec) -> None:
    records = many_records()
    client_batch = client.memory_records.MemoryRecords(build_batch(records, codec=codec)).next_batch()

    assert client_batch.validate_crc()
    read = [
        Record(
            record.offset,
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            tuple(record.headers),
        )
        for record in client_batch
    ]
    assert read == records


@every_client_and_codec
def test_we_read_a_clients_batch(client: Client, codec: Codec) -> None:
    records = many_records()
    builder = client.default_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec.value,
        is_transactional=0,
        producer_id=12,
        producer_epoch=3,
        base_sequence=4,
        batch_size=1 << 20,
    )
    for record in records:
        added = builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
        assert added is not None
    batch = bytes(builder.build())
    header = parse_header(batch)

    assert header.codec is codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (12, 3, 4)
    assert checksum_matches(batch, 0, header)
    assert decode_records(batch) == records
