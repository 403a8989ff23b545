"""What a client may not send, with the code Kafka answers."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

import lz4.frame
import pytest
import zstandard

from flowstone.config import DAY_MS, HOUR_MS, TopicConfig
from flowstone.errors import ApiError, ErrorCode, RecordError
from flowstone.log.partition.record_checks import RECORD_ERRORS_MAX
from flowstone.log.partition.validation import (
    INLINE_PAYLOAD_BYTES_MAX,
    INLINE_PLAIN_BYTES_MAX,
    INLINE_STORED_BYTES_MAX,
    NeedsWorker,
    Prepared,
    check_batch,
    needs_worker,
    prepare_batch,
)
from flowstone.wire.compression import Codec, compress
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    Record,
    build_batch,
    decode_records,
    encode_header,
    encode_record,
    parse_header,
)

NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig()
COMPACTED = TopicConfig(cleanup_policy=("compact",))
BY_HEADER = TopicConfig(flowstone_validation="header")


def batch(count: int = 3, *, key: bytes | None = b"k", at_ms: int = NOW_MS, **more: Any) -> bytes:
    return build_batch([Record(at, at_ms + at, key, b"value") for at in range(count)], **more)


def altered(**fields: int) -> bytes:
    """A batch whose header says something else, with a checksum that fits."""
    return repacked(batch(), **fields)


def repacked(good: bytes, **fields: int) -> bytes:
    return encode_header(parse_header(good)._replace(**fields), good[HEADER_BYTES:]) + good[HEADER_BYTES:]


def refusal(data: bytes, config: TopicConfig = CONFIG) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        check_batch(data, config, NOW_MS)
    return refused.value.code


def prepared_batch(data: bytes, config: TopicConfig = CONFIG) -> Prepared:
    prepared = prepare_batch(data, config, NOW_MS)
    assert prepared is not None
    return prepared


def test_a_good_batch_is_stored_as_it_came() -> None:
    header, stored = check_batch(batch(), CONFIG, NOW_MS)
    assert stored is header


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"", ErrorCode.CORRUPT_MESSAGE, id="nothing"),
        pytest.param(batch()[:40], ErrorCode.CORRUPT_MESSAGE, id="half a header"),
        pytest.param(batch()[:-1], ErrorCode.INVALID_RECORD, id="cut short"),
        pytest.param(batch() + batch(), ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(batch()[:-1] + b"\x01", ErrorCode.CORRUPT_MESSAGE, id="checksum"),
        pytest.param(batch()[:16] + b"\x01" + batch()[17:], ErrorCode.INVALID_RECORD, id="magic 1"),
        pytest.param(batch()[:16] + b"\x07" + batch()[17:], ErrorCode.CORRUPT_MESSAGE, id="magic 7"),
        pytest.param(altered(base_offset=5), ErrorCode.INVALID_RECORD, id="base offset"),
        pytest.param(altered(attributes=0x20), ErrorCode.INVALID_RECORD, id="control batch"),
        pytest.param(altered(attributes=0x10), ErrorCode.INVALID_TXN_STATE, id="transactional"),
        pytest.param(altered(attributes=0x05), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, id="no such codec"),
        pytest.param(altered(record_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD, id="no records"),
        pytest.param(altered(record_count=4), ErrorCode.INVALID_RECORD, id="count against delta"),
        pytest.param(
            altered(record_count=2, last_offset_delta=1), ErrorCode.INVALID_RECORD, id="count against records"
        ),
        pytest.param(altered(producer_id=4, producer_epoch=0), ErrorCode.INVALID_RECORD, id="no sequence"),
        pytest.param(altered(producer_id=0, producer_epoch=0), ErrorCode.INVALID_RECORD, id="no sequence, producer 0"),
        pytest.param(altered(attributes=LOG_APPEND_TIME_FLAG), ErrorCode.INVALID_TIMESTAMP, id="timestamp type"),
    ],
)
def test_a_batch_that_lies_is_refused_with_kafkas_code(data: bytes, code: ErrorCode) -> None:
    assert refusal(data) is code


def test_a_batch_above_max_message_bytes_is_refused() -> None:
    config = TopicConfig(max_message_bytes=len(batch()) - 1)
    assert refusal(batch(), config) is ErrorCode.MESSAGE_TOO_LARGE
    check_batch(batch(), TopicConfig(max_message_bytes=len(batch())), NOW_MS)


def test_a_batch_above_segment_bytes_is_refused() -> None:
    assert refusal(batch(), TopicConfig(segment_bytes=len(batch()) - 1)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_record_too_far_ahead_of_the_clock_is_refused() -> None:
    assert refusal(batch(at_ms=NOW_MS + HOUR_MS)) is ErrorCode.INVALID_TIMESTAMP
    check_batch(batch(1, at_ms=NOW_MS + HOUR_MS), CONFIG, NOW_MS)


def test_a_record_too_far_behind_the_clock_is_refused() -> None:
    config = TopicConfig(message_timestamp_before_max_ms=DAY_MS)
    assert refusal(batch(at_ms=NOW_MS - DAY_MS - 1), config) is ErrorCode.INVALID_TIMESTAMP
    check_batch(batch(at_ms=NOW_MS - DAY_MS), config, NOW_MS)


def test_a_record_without_a_timestamp_is_taken() -> None:
    check_batch(batch(1, at_ms=-1), TopicConfig(message_timestamp_before_max_ms=1), NOW_MS)


def test_the_records_of_a_compressed_batch_are_judged_by_their_timestamps(codec: Codec) -> None:
    assert refusal(batch(at_ms=NOW_MS + HOUR_MS, codec=codec)) is ErrorCode.INVALID_TIMESTAMP


def test_with_validation_of_headers_the_header_s_timestamps_count(codec: Codec) -> None:
    assert refusal(batch(at_ms=NOW_MS + HOUR_MS, codec=codec), BY_HEADER) is ErrorCode.INVALID_TIMESTAMP
    old = TopicConfig(flowstone_validation="header", message_timestamp_before_max_ms=5)
    assert refusal(batch(at_ms=NOW_MS - HOUR_MS, codec=codec), old) is ErrorCode.INVALID_TIMESTAMP


def test_a_wrong_max_timestamp_is_put_right() -> None:
    header, stored = check_batch(altered(max_timestamp=NOW_MS + 77), CONFIG, NOW_MS)
    assert (header.max_timestamp, stored.max_timestamp) == (NOW_MS + 77, NOW_MS + 2)


def test_log_append_time_stamps_the_header_with_the_brokers_clock() -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime")
    _header, stored = check_batch(batch(at_ms=5), config, NOW_MS)
    assert stored.uses_log_append_time
    assert stored.max_timestamp == NOW_MS


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    assert refusal(batch(key=None), COMPACTED) is ErrorCode.INVALID_RECORD
    check_batch(batch(key=b""), COMPACTED, NOW_MS)


def test_a_batch_is_refused_for_the_number_that_is_wrong() -> None:
    counts = repacked(batch(1, producer_id=1, producer_epoch=0, base_sequence=0), record_count=2)
    with pytest.raises(RecordError, match="says it has 2 records and a last offset delta of 0"):
        check_batch(counts, CONFIG, NOW_MS)
    with pytest.raises(RecordError, match="producer 1 sends no sequence number"):
        check_batch(batch(producer_id=1, producer_epoch=0, base_sequence=-1), CONFIG, NOW_MS)


def test_every_bit_of_a_batch_is_covered_by_some_check() -> None:
    good = batch(producer_id=1, producer_epoch=0, base_sequence=0)
    for position in range(len(good)):
        if 12 <= position < 16:  # the leader epoch is the broker's to set
            continue
        damaged = bytearray(good)
        damaged[position] ^= 1
        with pytest.raises(ApiError):
            check_batch(damaged, CONFIG, NOW_MS)


def test_what_the_topic_stores_as_sent_needs_no_worker(codec: Codec) -> None:
    name = codec.name.lower()
    compressed = parse_header(batch(codec=codec))
    assert not needs_worker(compressed, CONFIG)
    assert not needs_worker(compressed, TopicConfig(compression_type=name))
    assert not needs_worker(parse_header(batch()), COMPACTED)
    assert not needs_worker(compressed, COMPACTED)
    assert needs_worker(parse_header(batch()), TopicConfig(compression_type=name))
    assert needs_worker(compressed, TopicConfig(compression_type="uncompressed"))


def test_an_uncompressed_batch_too_large_for_the_loop_is_checked_by_a_worker() -> None:
    config = TopicConfig(max_message_bytes=2 * INLINE_PLAIN_BYTES_MAX)
    large = build_batch([Record(0, NOW_MS, b"k", bytes(INLINE_PLAIN_BYTES_MAX))])
    with pytest.raises(NeedsWorker):
        check_batch(large, config, NOW_MS)
    prepared = prepare_batch(large, config, NOW_MS, 1)  # whatever may be decompressed at once
    assert prepared is not None
    assert prepared.batch is large
    header, stored = check_batch(large, config, NOW_MS, prepared.timestamps)
    assert header is stored
    with pytest.raises(RecordError):
        prepare_batch(large[:-1] + b"x", config, NOW_MS)


def test_a_compacted_topic_has_keys_checked_even_if_only_headers_are_validated(codec: Codec) -> None:
    config = TopicConfig(cleanup_policy=("compact",), flowstone_validation="header")
    assert needs_worker(parse_header(batch(codec=codec)), config)
    assert not needs_worker(parse_header(batch()), config)


def test_a_batch_too_large_for_the_loop_needs_a_worker() -> None:
    noise = Random(1).randbytes(INLINE_STORED_BYTES_MAX)
    large = build_batch([Record(0, NOW_MS, b"k", noise)], codec=Codec.GZIP)
    assert needs_worker(parse_header(large), CONFIG)
    with pytest.raises(NeedsWorker):
        check_batch(large, CONFIG, NOW_MS)
    prepared = prepared_batch(large)
    header, stored = check_batch(prepared.batch, CONFIG, NOW_MS, prepared.timestamps)
    assert header is stored


def test_a_small_batch_that_is_large_when_decompressed_needs_a_worker(codec: Codec) -> None:
    bomb = build_batch([Record(0, NOW_MS, b"k", bytes(INLINE_PAYLOAD_BYTES_MAX))], codec=codec)
    with pytest.raises(NeedsWorker):
        check_batch(bomb, CONFIG, NOW_MS)
    assert prepared_batch(bomb).timestamps == (NOW_MS, NOW_MS)


def test_what_a_worker_prepares_may_not_take_more_than_the_limit(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.log.partition.validation.DECOMPRESSED_BYTES_MAX", 1 << 20)
    prepare_batch(build_batch([Record(0, NOW_MS, b"k", bytes(900_000))], codec=codec), CONFIG, NOW_MS, 1 << 20)
    too_large = build_batch([Record(0, NOW_MS, b"k", bytes(1 << 20))], codec=codec)
    with pytest.raises(RecordError) as refused:
        prepare_batch(too_large, CONFIG, NOW_MS, 1 << 20)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert prepare_batch(too_large, CONFIG, NOW_MS, 1 << 19) is None


def test_a_batch_is_stored_under_the_topics_codec(codec: Codec) -> None:
    config = TopicConfig(compression_type=codec.name.lower())
    prepared = prepared_batch(batch(50), config)
    assert parse_header(prepared.batch).codec is codec
    assert decode_records(prepared.batch) == decode_records(batch(50))
    check_batch(prepared.batch, config, NOW_MS, prepared.timestamps)


def test_a_compressed_batch_of_a_compacted_topic_is_opened_and_kept(codec: Codec) -> None:
    sent = batch(codec=codec)
    assert prepared_batch(sent, COMPACTED).batch == sent
    header, stored = check_batch(sent, COMPACTED, NOW_MS)
    assert header is stored


def test_a_compressed_record_without_a_key_is_found(codec: Codec) -> None:
    keyless = batch(key=None, codec=codec)
    assert refusal(keyless, COMPACTED) is ErrorCode.INVALID_RECORD
    with pytest.raises(ApiError) as refused:
        prepare_batch(keyless, COMPACTED, NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("count", "delta"), [(2, 1), (4, 3), (2**31 - 1, 2**31 - 2)])
def test_a_compressed_batch_that_lies_about_its_count_is_refused(codec: Codec, count: int, delta: int) -> None:
    lying = repacked(batch(codec=codec), record_count=count, last_offset_delta=delta)
    assert refusal(lying) is ErrorCode.INVALID_RECORD
    with pytest.raises(ApiError) as refused:
        prepare_batch(lying, dataclasses.replace(CONFIG, compression_type="uncompressed"), NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_preparing_refuses_a_batch_with_a_bad_checksum() -> None:
    with pytest.raises(ApiError) as refused:
        prepare_batch(batch()[:-1] + b"\x01", TopicConfig(compression_type="gzip"), NOW_MS)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_records_are_checked_before_they_are_compressed() -> None:
    lying = altered(record_count=2, last_offset_delta=1)
    with pytest.raises(ApiError) as refused:
        prepare_batch(lying, TopicConfig(compression_type="zstd"), NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_a_wrong_max_timestamp_is_put_right_in_a_compressed_batch(codec: Codec) -> None:
    _header, stored = check_batch(repacked(batch(codec=codec), max_timestamp=5), CONFIG, NOW_MS)
    assert stored.max_timestamp == NOW_MS + 2
    config = TopicConfig(compression_type=codec.name.lower())
    prepared = prepared_batch(altered(max_timestamp=5), config)
    _header, stored = check_batch(prepared.batch, config, NOW_MS, prepared.timestamps)
    assert stored.max_timestamp == NOW_MS + 2


# What consumers cannot read. CORRUPT_MESSAGE would be retried by clients until their time is over.

GOOD_PAYLOAD = batch()[HEADER_BYTES:]


def poison(codec: Codec, payload: bytes, **fields: int) -> bytes:
    """A batch whose checksum is right and whose compressed payload is this."""
    header = parse_header(batch())._replace(attributes=codec, **fields)
    return encode_header(header, payload) + payload


@pytest.mark.parametrize("payload", [b"", b"notgzip", b"\x00", bytes(100)])
def test_a_payload_that_is_not_of_its_codec_is_refused(codec: Codec, payload: bytes) -> None:
    assert refusal(poison(codec, payload)) is ErrorCode.INVALID_RECORD


def test_with_validation_of_headers_a_compressed_batch_is_not_opened(codec: Codec) -> None:
    check_batch(poison(codec, b"notgzip"), BY_HEADER, NOW_MS)


def test_a_compressed_payload_cut_anywhere_is_refused(codec: Codec) -> None:
    whole = compress(codec, GOOD_PAYLOAD)
    for end in range(len(whole)):
        assert refusal(poison(codec, whole[:end])) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("more", [b"\x00", b"more than was said"])
def test_bytes_after_the_compressed_payload_are_refused(codec: Codec, more: bytes) -> None:
    assert refusal(poison(codec, compress(codec, GOOD_PAYLOAD) + more)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("other", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_two_compressed_frames_are_refused(other: Codec) -> None:
    halves = compress(other, GOOD_PAYLOAD[:7]) + compress(other, GOOD_PAYLOAD[7:])
    assert refusal(poison(other, halves)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("other", [Codec.LZ4, Codec.ZSTD])
def test_a_skippable_frame_is_refused(other: Codec) -> None:
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    whole = compress(other, GOOD_PAYLOAD)
    assert refusal(poison(other, skippable + whole)) is ErrorCode.INVALID_RECORD
    assert refusal(poison(other, whole + skippable)) is ErrorCode.INVALID_RECORD


def test_zstd_that_needs_a_dictionary_is_refused() -> None:
    samples = [b"record %d of many that look alike" % number for number in range(500)]
    dictionary = zstandard.train_dictionary(4096, samples)
    compressed = zstandard.ZstdCompressor(dict_data=dictionary).compress(GOOD_PAYLOAD)
    assert refusal(poison(Codec.ZSTD, compressed)) is ErrorCode.INVALID_RECORD


def test_lz4_with_linked_blocks_is_refused_since_java_cannot_read_it() -> None:
    record = [Record(0, NOW_MS, b"k", bytes(100_000))]
    payload = build_batch(record)[HEADER_BYTES:]
    linked, independent = (lz4.frame.compress(payload, block_linked=linked) for linked in (True, False))
    fields = {"record_count": 1, "last_offset_delta": 0, "max_timestamp": NOW_MS}
    assert refusal(poison(Codec.LZ4, linked, **fields)) is ErrorCode.INVALID_RECORD
    check_batch(poison(Codec.LZ4, independent, **fields), CONFIG, NOW_MS)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(GOOD_PAYLOAD + b"\x00", id="one more byte"),
        pytest.param(GOOD_PAYLOAD[:-1], id="one byte less"),
        pytest.param(b"".join(encode_record(delta, 0, b"k", b"v") for delta in (0, 2, 1)), id="deltas out of order"),
        pytest.param(b"".join(encode_record(delta, 0, b"k", b"v") for delta in (1, 2, 3)), id="deltas from 1 on"),
        pytest.param(b"\xff" * 40, id="huge varints"),
        pytest.param(b"\xfe\xff\xff\xff\x0f" + bytes(20), id="a record of 2 GB"),
        pytest.param(bytes(40), id="empty records"),
    ],
)
def test_compressed_records_that_are_malformed_are_refused(codec: Codec, payload: bytes) -> None:
    assert refusal(poison(codec, compress(codec, payload))) is ErrorCode.INVALID_RECORD


# Which records are wrong


def bad_records(data: bytes, config: TopicConfig) -> RecordError:
    with pytest.raises(RecordError) as refused:
        check_batch(data, config, NOW_MS)
    return refused.value


@pytest.mark.parametrize("codec_or_none", list(Codec))
def test_each_record_without_a_key_is_named(codec_or_none: Codec) -> None:
    keys = [b"a", None, b"", None]
    data = build_batch([Record(at, NOW_MS, key, b"v") for at, key in enumerate(keys)], codec=codec_or_none)
    error = bad_records(data, COMPACTED)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in error.bad_records] == [1, 3]
    assert "cleanup.policy=compact" in error.bad_records[0].message


@pytest.mark.parametrize("codec_or_none", list(Codec))
def test_each_record_with_a_timestamp_out_of_range_is_named_with_the_setting(codec_or_none: Codec) -> None:
    config = TopicConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
    times = [NOW_MS, NOW_MS + 2001, NOW_MS - 1001, -1, NOW_MS + 2000, NOW_MS - 1000]
    data = build_batch([Record(at, time, b"k", b"v") for at, time in enumerate(times)], codec=codec_or_none)
    error = bad_records(data, config)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in error.bad_records] == [1, 2]
    assert "message.timestamp.after.max.ms allows 2000" in error.bad_records[0].message
    assert "message.timestamp.before.max.ms allows 1000" in error.bad_records[1].message


def test_a_timestamp_out_of_range_counts_more_than_a_missing_key_as_in_kafka() -> None:
    config = TopicConfig(cleanup_policy=("compact",))
    records = [Record(0, NOW_MS, None, b"v"), Record(1, NOW_MS + 2 * HOUR_MS, b"k", b"v")]
    error = bad_records(build_batch(records), config)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in error.bad_records] == [0, 1]


def test_log_append_time_spares_records_the_check_of_their_timestamps(codec: Codec) -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime")
    check_batch(batch(at_ms=NOW_MS + DAY_MS, codec=codec), config, NOW_MS)


def test_no_more_records_are_named_than_the_limit() -> None:
    error = bad_records(batch(RECORD_ERRORS_MAX + 1, key=None), COMPACTED)
    assert len(error.bad_records) == RECORD_ERRORS_MAX


@pytest.mark.parametrize("count", [2, 4])
def test_a_wrong_count_of_records_is_no_record_s_fault(codec: Codec, count: int) -> None:
    lying = repacked(batch(codec=codec), record_count=count, last_offset_delta=count - 1)
    assert not bad_records(lying, CONFIG).bad_records


def test_the_malformed_record_is_named(codec: Codec) -> None:
    payload = b"".join(encode_record(delta, 0, b"k", b"v") for delta in (0, 2, 1))
    error = bad_records(poison(codec, compress(codec, payload)), CONFIG)
    assert [each.batch_index for each in error.bad_records] == [1]


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    config = TopicConfig(message_timestamp_after_max_ms=2**63 - 1)
    assert refusal(altered(base_timestamp=2**63 - 2), config) is ErrorCode.INVALID_TIMESTAMP
