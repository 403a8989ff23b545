"""The limits of what a batch may say and of its size: the last value that is taken, and the first that is not."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, ErrorCode, RecordError
from flowstone.log.partition import validation
from flowstone.log.partition.record_checks import _refuse_records
from flowstone.log.partition.validation import (
    INLINE_PLAIN_BYTES_MAX,
    INLINE_STORED_BYTES_MAX,
    NeedsWorker,
    check_batch,
    needs_worker,
    prepare_batch,
)
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch, encode_header, parse_header

NOW_MS = 1_700_000_000_000


def batch(value: bytes = b"value", **more: Any) -> bytes:
    return build_batch([Record(0, NOW_MS, b"k", value)], **more)


def with_fields(data: bytes, **fields: int) -> bytes:
    return encode_header(parse_header(data)._replace(**fields), data[HEADER_BYTES:]) + data[HEADER_BYTES:]


def code_of(data: bytes, **config: Any) -> ErrorCode | None:
    try:
        check_batch(data, TopicConfig(**config), NOW_MS, takes_transactional=True)
    except ApiError as error:
        return error.code
    return None


def test_a_batch_may_be_as_large_as_a_segment_and_a_message_may_be() -> None:
    size_bytes = len(batch())
    assert code_of(batch(), segment_bytes=size_bytes) is None
    assert code_of(batch(), segment_bytes=size_bytes - 1) is ErrorCode.RECORD_LIST_TOO_LARGE
    assert code_of(batch(), max_message_bytes=size_bytes) is None
    assert code_of(batch(), max_message_bytes=size_bytes - 1) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("count", [0, -1])
def test_a_batch_without_records_is_refused_though_its_numbers_fit_together(count: int) -> None:
    data = with_fields(batch(), record_count=count, last_offset_delta=count - 1)
    with pytest.raises(RecordError, match=f"it has {count} records") as error:
        check_batch(data, TopicConfig(), NOW_MS)
    assert error.value.code is ErrorCode.INVALID_RECORD


def test_one_record_of_a_producer_needs_a_sequence() -> None:
    assert code_of(with_fields(batch(), producer_id=0, producer_epoch=0, base_sequence=0)) is None
    with pytest.raises(RecordError, match="producer 0 sends no sequence number"):
        check_batch(with_fields(batch(), producer_id=0, producer_epoch=0), TopicConfig(), NOW_MS)


def test_a_transaction_is_a_producers() -> None:
    producer = {"producer_epoch": 0, "base_sequence": 0}
    transactional = with_fields(batch(), attributes=0x10)
    assert code_of(transactional) is ErrorCode.INVALID_RECORD
    assert code_of(with_fields(transactional, producer_id=0, **producer)) is None


@pytest.mark.parametrize(
    ("codec", "most_bytes"), [(Codec.NONE, INLINE_PLAIN_BYTES_MAX), (Codec.LZ4, INLINE_STORED_BYTES_MAX)]
)
def test_a_batch_needs_a_worker_from_a_named_size_on(codec: Codec, most_bytes: int) -> None:
    header = parse_header(batch(codec=codec))
    above = header.size_bytes - header.batch_length
    config = TopicConfig()
    assert not needs_worker(header._replace(batch_length=most_bytes - above), config)
    assert needs_worker(header._replace(batch_length=most_bytes - above + 1), config)


def test_a_large_batch_is_checked_here_if_it_needs_no_worker() -> None:
    large = batch(bytes(INLINE_STORED_BYTES_MAX + 1))
    assert len(large) <= INLINE_PLAIN_BYTES_MAX
    assert code_of(large) is None
    with pytest.raises(NeedsWorker):
        check_batch(batch(bytes(INLINE_PLAIN_BYTES_MAX)), TopicConfig(max_message_bytes=2**30), NOW_MS)


def test_a_worker_refuses_what_is_not_one_batch() -> None:
    with pytest.raises(RecordError, match="not exactly one batch"):
        prepare_batch(batch() + b"\0", TopicConfig(), NOW_MS)


@pytest.mark.parametrize(
    ("codec", "setting", "level"),
    [
        (Codec.GZIP, "compression_gzip_level", 9),
        (Codec.LZ4, "compression_lz4_level", 17),
        (Codec.ZSTD, "compression_zstd_level", 22),
        (Codec.SNAPPY, "compression_zstd_level", None),
    ],
)
def test_a_batch_is_compressed_with_the_topics_level(
    codec: Codec, setting: str, level: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int | None] = []
    compress = validation.compress

    def noting(codec: Codec, payload: bytes, level: int | None) -> bytes:
        used.append(level)
        return compress(codec, payload, level)

    monkeypatch.setattr(validation, "compress", noting)
    settings: dict[str, Any] = {setting: level} if level is not None else {}
    prepare_batch(batch(), TopicConfig(compression_type=codec.name.lower(), **settings), NOW_MS)
    assert used == [level]


@pytest.mark.parametrize(
    ("age_ms", "code"),
    [(1000, None), (1001, ErrorCode.INVALID_TIMESTAMP), (-500, None), (-501, ErrorCode.INVALID_TIMESTAMP)],
)
def test_a_record_may_be_as_old_and_as_far_ahead_as_the_limits(age_ms: int, code: ErrorCode | None) -> None:
    limits = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 500}
    for others in ((), (NOW_MS,), (NOW_MS, NOW_MS - 1000, NOW_MS + 500)):
        records = [Record(at, time_ms, b"k", b"v") for at, time_ms in enumerate((*others, NOW_MS - age_ms))]
        assert code_of(build_batch(records), **limits) is code


def test_the_check_of_each_record_takes_timestamps_at_the_limits() -> None:
    config = TopicConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    data = build_batch([Record(0, NOW_MS - 1000, b"k", b"v"), Record(1, NOW_MS + 500, b"k", b"v")])
    _refuse_records(data, HEADER_BYTES, parse_header(data), config, NOW_MS)
    with pytest.raises(RecordError):
        _refuse_records(data, HEADER_BYTES, parse_header(data), config, NOW_MS + 1)
    with pytest.raises(RecordError):
        _refuse_records(data, HEADER_BYTES, parse_header(data), config, NOW_MS - 1)
