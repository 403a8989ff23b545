"""What a client's batch must be before it may enter a log: Kafka's LogValidator, in the order in which Kafka checks.

Pure: bytes and settings in, a header out or `RecordError` with Kafka's code. `check_batch` runs on the event loop
for every produced batch and loops over nothing; records of an uncompressed batch are walked natively. What costs
more, a change of codec or a look into a compressed batch of a compacted topic, is `rewrite_batch`, which the caller
runs in a worker thread where `needs_rewrite` says so.
"""

from __future__ import annotations

from flowstone.config import TopicConfig
from flowstone.errors import ErrorCode, RecordError
from flowstone.kernel import RecordsStatus, check_records
from flowstone.types import Bytes
from flowstone.wire.compression import Codec, compress
from flowstone.wire.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    checksum_matches,
    compute_crc,
    encode_header,
    parse_header,
    read_payload,
    stamp,
)

NO_TIMESTAMP = -1
TIMESTAMP_MAX = 2**63 - 1
# A batch whose records say more than this when decompressed is refused, however small it came.
DECOMPRESSED_BYTES_MAX = 100 << 20

_CODEC_OF_TYPE = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def check_batch(records: Bytes, config: TopicConfig, now_ms: int) -> tuple[BatchHeader, BatchHeader]:
    """The batch's header as sent and as to be stored: another one if its timestamps must change."""
    header = parse_header(records)
    # All at once: a named field of a tuple takes ten times as long as a local, and this is done for every batch.
    _, length, _, _, crc, attributes, last_delta, oldest, newest, producer_id, _, sequence, count = header
    _check_size(header, length + LOG_OVERHEAD, len(records), config)
    if compute_crc(records, 0, length + LOG_OVERHEAD) != crc:
        raise RecordError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match")
    if attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG):
        raise _refuse_kind(header)
    if count <= 0 or count != last_delta + 1:
        raise RecordError(
            ErrorCode.INVALID_RECORD,
            f"the batch says it has {count} records and a last offset delta of {last_delta}",
        )
    if producer_id >= 0 and sequence < 0:
        raise RecordError(ErrorCode.INVALID_RECORD, f"producer {producer_id} sends no sequence number")
    stated_newest = newest
    if attributes & CODEC_MASK:
        header.codec  # noqa: B018 - refuses a codec that does not exist
        newest = max(oldest, newest)
    else:
        oldest, newest = _check_records(records, HEADER_BYTES, oldest, count, config)
    if config.message_timestamp_type == "LogAppendTime":
        return header, stamp(header, now_ms)
    _check_timestamps(attributes, oldest, newest, config, now_ms)
    return header, header if newest == stated_newest else header._replace(max_timestamp=newest)


def _check_size(header: BatchHeader, size_bytes: int, given_bytes: int, config: TopicConfig) -> None:
    if size_bytes != given_bytes:
        raise RecordError(
            ErrorCode.INVALID_RECORD, f"{given_bytes} bytes are not exactly one batch of {size_bytes} bytes"
        )
    if header.base_offset:
        raise RecordError(ErrorCode.INVALID_RECORD, f"the base offset must be 0, not {header.base_offset}")
    if size_bytes > config.max_message_bytes:
        raise RecordError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {size_bytes} bytes is above max.message.bytes, {config.max_message_bytes}",
        )
    if size_bytes > config.segment_bytes:
        raise RecordError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {size_bytes} bytes is above segment.bytes, {config.segment_bytes}",
        )


def _refuse_kind(header: BatchHeader) -> RecordError:
    if header.is_control:
        return RecordError(ErrorCode.INVALID_RECORD, "clients must not send control batches")
    return RecordError(ErrorCode.INVALID_TXN_STATE, "no transaction is open for this producer on this partition")


def _check_records(
    payload: Bytes, position: int, base_timestamp: int, record_count: int, config: TopicConfig
) -> tuple[int, int]:
    """Walks the uncompressed records from `position` on; their oldest and newest timestamp."""
    check = check_records(payload, position, len(payload) - position, record_count)
    status, record_index, null_keys, min_delta, max_delta, _ = check
    if status:
        raise RecordError(
            ErrorCode.INVALID_RECORD,
            f"record {record_index} is malformed: {RecordsStatus(status).name.lower().replace('_', ' ')}",
            record_index,
        )
    if null_keys and "compact" in config.cleanup_policy:
        raise _keyless(null_keys)
    oldest, newest = base_timestamp + min_delta, base_timestamp + max_delta
    if oldest < -TIMESTAMP_MAX or newest > TIMESTAMP_MAX:
        raise RecordError(ErrorCode.INVALID_TIMESTAMP, "a record's timestamp does not fit 64 bits")
    return oldest, newest


def _keyless(count: int) -> RecordError:
    return RecordError(ErrorCode.INVALID_RECORD, f"{count} records without a key; a compacted topic needs one in each")


def _check_timestamps(attributes: int, oldest: int, newest: int, config: TopicConfig, now_ms: int) -> None:
    if attributes & LOG_APPEND_TIME_FLAG:
        raise RecordError(ErrorCode.INVALID_TIMESTAMP, "a producer must not set the timestamp type to LogAppendTime")
    if oldest != NO_TIMESTAMP and now_ms - oldest > config.message_timestamp_before_max_ms:
        raise RecordError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {oldest} is more than {config.message_timestamp_before_max_ms} ms behind the broker's clock",
        )
    if newest - now_ms > config.message_timestamp_after_max_ms:
        raise RecordError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {newest} is more than {config.message_timestamp_after_max_ms} ms ahead of the broker's clock",
        )


def needs_rewrite(header: BatchHeader, config: TopicConfig) -> bool:
    """Whether `rewrite_batch` must come before the append."""
    codec = header.codec
    target = _CODEC_OF_TYPE.get(config.compression_type, codec)
    return codec is not target or (codec is not Codec.NONE and "compact" in config.cleanup_policy)


def rewrite_batch(batch: Bytes, config: TopicConfig) -> bytes:
    """The batch under the topic's codec, its records looked at first. For a worker thread."""
    header = parse_header(batch)
    _check_size(header, header.size_bytes, len(batch), config)
    if not checksum_matches(batch, 0, header):
        raise RecordError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match")
    codec, payload = header.codec, read_payload(batch, 0, header, DECOMPRESSED_BYTES_MAX)
    _oldest, newest = _check_records(payload, 0, header.base_timestamp, header.record_count, config)
    target = _CODEC_OF_TYPE.get(config.compression_type, codec)
    if target is codec and newest == header.max_timestamp:
        return bytes(batch)
    stored = compress(target, payload, _level(target, config))
    attributes = header.attributes & ~CODEC_MASK | target
    return encode_header(header._replace(attributes=attributes, max_timestamp=newest), stored) + stored


def _level(codec: Codec, config: TopicConfig) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
        case _:
            return None
