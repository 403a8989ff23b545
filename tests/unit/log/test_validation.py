"""What a client may not send, with the code Kafka answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flowstone.config import DAY_MS, HOUR_MS, TopicConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.validation import check_batch, needs_rewrite, rewrite_batch
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    Record,
    build_batch,
    decode_records,
    encode_header,
    parse_header,
)

NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig()
COMPACTED = TopicConfig(cleanup_policy=("compact",))


def batch(count: int = 3, *, key: bytes | None = b"k", at_ms: int = NOW_MS, **more: Any) -> bytes:
    return build_batch([Record(at, at_ms + at, key, b"value") for at in range(count)], **more)


def altered(**fields: int) -> bytes:
    """A batch whose header says something else, with a checksum that fits."""
    good = batch()
    return encode_header(parse_header(good)._replace(**fields), good[HEADER_BYTES:]) + good[HEADER_BYTES:]


def refusal(data: bytes, config: TopicConfig = CONFIG) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        check_batch(data, config, NOW_MS)
    return refused.value.code


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


def test_the_compressed_are_judged_by_their_headers_timestamps(codec: Codec) -> None:
    assert refusal(batch(at_ms=NOW_MS + HOUR_MS, codec=codec)) is ErrorCode.INVALID_TIMESTAMP


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


def test_every_bit_of_a_batch_is_covered_by_some_check() -> None:
    good = batch(producer_id=1, producer_epoch=0, base_sequence=0)
    for position in range(len(good)):
        if 12 <= position < 16:  # the leader epoch is the broker's to set
            continue
        damaged = bytearray(good)
        damaged[position] ^= 1
        with pytest.raises(ApiError):
            check_batch(damaged, CONFIG, NOW_MS)


def test_what_the_topic_stores_as_sent_needs_no_rewriting(codec: Codec) -> None:
    name = codec.name.lower()
    compressed = parse_header(batch(codec=codec))
    assert not needs_rewrite(compressed, CONFIG)
    assert not needs_rewrite(compressed, TopicConfig(compression_type=name))
    assert not needs_rewrite(parse_header(batch()), COMPACTED)
    assert needs_rewrite(parse_header(batch()), TopicConfig(compression_type=name))
    assert needs_rewrite(compressed, TopicConfig(compression_type="uncompressed"))
    assert needs_rewrite(compressed, COMPACTED)


def test_a_batch_is_rewritten_under_the_topics_codec(codec: Codec) -> None:
    config = TopicConfig(compression_type=codec.name.lower())
    rewritten = rewrite_batch(batch(50), config)
    assert parse_header(rewritten).codec is codec
    assert decode_records(rewritten) == decode_records(batch(50))
    check_batch(rewritten, config, NOW_MS)


def test_a_compressed_batch_of_a_compacted_topic_is_opened_and_kept(codec: Codec) -> None:
    sent = batch(codec=codec)
    assert rewrite_batch(sent, COMPACTED) == sent


def test_a_compressed_record_without_a_key_is_found(codec: Codec) -> None:
    with pytest.raises(ApiError) as refused:
        rewrite_batch(batch(key=None, codec=codec), COMPACTED)
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_rewriting_finds_a_compressed_batch_that_lies_about_its_count(codec: Codec) -> None:
    good = batch(codec=codec)
    header = parse_header(good)._replace(record_count=2, last_offset_delta=1)
    config = dataclasses.replace(CONFIG, compression_type="uncompressed")
    with pytest.raises(ApiError) as refused:
        rewrite_batch(encode_header(header, good[HEADER_BYTES:]) + good[HEADER_BYTES:], config)
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_rewriting_refuses_a_batch_with_a_bad_checksum() -> None:
    with pytest.raises(ApiError) as refused:
        rewrite_batch(batch()[:-1] + b"\x01", TopicConfig(compression_type="gzip"))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_records_are_looked_at_before_they_are_compressed() -> None:
    lying = altered(record_count=2, last_offset_delta=1)
    with pytest.raises(ApiError) as refused:
        rewrite_batch(lying, TopicConfig(compression_type="zstd"))
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_a_wrong_max_timestamp_is_put_right_when_a_batch_is_rewritten(codec: Codec) -> None:
    rewritten = rewrite_batch(altered(max_timestamp=5), TopicConfig(compression_type=codec.name.lower()))
    assert parse_header(rewritten).max_timestamp == NOW_MS + 2


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    config = TopicConfig(message_timestamp_after_max_ms=2**63 - 1)
    assert refusal(altered(base_timestamp=2**63 - 2), config) is ErrorCode.INVALID_TIMESTAMP
