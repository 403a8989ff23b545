"""Validates a client's batch before it enters a log: Kafka's LogValidator, with the checks in Kafka's order.

Pure: bytes and settings in, a header out or `RecordError`. `check_batch` runs on the event loop for every produced
batch and loops over nothing in Python. Compressed batches are opened before they are stored (ADR 0015), small ones on
the loop, which costs less than a hand-over to another thread. Larger ones (`needs_worker`, or `NeedsWorker` from
`check_batch`), and those that are stored under another codec, are opened by `prepare_batch` in a worker thread, which
checks large uncompressed batches too; the caller hands what it returns to `check_batch`.

A batch that cannot be opened is refused with INVALID_RECORD. Clients take CORRUPT_MESSAGE for damage on the way and
send the same bytes again until their time is over.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.config import TopicConfig
from flowstone.errors import ErrorCode, FlowstoneError, RecordError
from flowstone.log.partition.record_checks import Timestamps, check_payload, check_stated_timestamps
from flowstone.types import Bytes
from flowstone.wire.compression import Codec, DecompressError, PayloadTooLarge, check_portable, compress, decompress
from flowstone.wire.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    PREFIX_BYTES,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    checksum_matches,
    compute_crc,
    encode_header,
    parse_header,
    prefix,
    stamp,
)

# A batch whose records take more than this when decompressed is refused, however small it is when compressed.
DECOMPRESSED_BYTES_MAX = 100 << 20
# The most bytes decompressed on the event loop; a batch that is larger, sent or decompressed, is opened by a worker.
INLINE_STORED_BYTES_MAX = 64 << 10
INLINE_PAYLOAD_BYTES_MAX = 256 << 10
# The largest uncompressed batch that is checked on the event loop.
INLINE_PLAIN_BYTES_MAX = 4 << 20

VALIDATE_RECORDS = "records"
VALIDATE_HEADER = "header"

_CODEC_OF_TYPE = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class NeedsWorker(FlowstoneError):
    """A batch is too large to be opened or checked on the event loop: `prepare_batch` must do so in a worker."""


class Prepared(NamedTuple):
    """A batch that a worker has opened, as it will be stored except for the offsets and timestamps in its header."""

    batch: Bytes
    timestamps: Timestamps


def check_batch(
    records: Bytes,
    config: TopicConfig,
    now_ms: int,
    opened: Timestamps | None = None,
    takes_transactional: bool = False,
) -> tuple[BatchHeader, BatchHeader]:
    """Return the batch's header as sent and as to be stored, which differ if its timestamps must change.

    `opened` is what `prepare_batch` has found in the batch, whose checksum and records are not checked again then.
    `takes_transactional` says that the batch may be part of a transaction, which must be a producer's.
    Raises ApiError if the batch is refused and NeedsWorker if it must be prepared first.
    """
    header = parse_header(records)
    # Unpacked at once: a named field of a tuple takes ten times as long as a local, and this runs for every batch.
    _, length, _, _, crc, attributes, last_delta, oldest, newest, producer_id, _, sequence, count = header
    _check_size(header, length + LOG_OVERHEAD, len(records), config)
    if opened is None:
        if len(records) > INLINE_STORED_BYTES_MAX and needs_worker(header, config):
            raise NeedsWorker  # the worker checks the checksum too
        if compute_crc(records, 0, length + LOG_OVERHEAD) != crc:
            raise RecordError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match")
    if attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG):
        _check_kind(header, takes_transactional)
    if count <= 0 or count != last_delta + 1 or (producer_id >= 0 and sequence < 0):
        raise _refuse_numbers(header)
    is_stamped = config.message_timestamp_type == "LogAppendTime"
    if attributes & LOG_APPEND_TIME_FLAG and not is_stamped:
        raise RecordError(ErrorCode.INVALID_TIMESTAMP, "a producer must not set the timestamp type to LogAppendTime")
    stated_newest = newest
    if opened is not None:
        oldest, newest = opened
    elif not attributes & CODEC_MASK:
        oldest, newest = check_payload(records, HEADER_BYTES, header, config, now_ms)
    elif config.flowstone_validation == VALIDATE_RECORDS:
        oldest, newest = _open_inline(records, header, config, now_ms)
    else:
        header.codec  # noqa: B018 - refuses a codec that does not exist
        newest = max(oldest, newest)
        if not is_stamped:
            check_stated_timestamps(oldest, newest, config, now_ms)
    if is_stamped:
        return header, stamp(header, now_ms)
    return header, header if newest == stated_newest else header._replace(max_timestamp=newest)


def place_batch(
    records: Bytes, header: BatchHeader, stored: BatchHeader, base_offset: int, leader_epoch: int
) -> list[Bytes]:
    """Return the batch's bytes for its position in the log; all but the first few are the client's own bytes."""
    if stored is header:
        return [prefix(base_offset, header.batch_length, leader_epoch), memoryview(records)[PREFIX_BYTES:]]
    payload = memoryview(records)[HEADER_BYTES:]
    placed = stored._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
    return [encode_header(placed, payload), payload]


def header_of(buffers: list[Bytes]) -> list[Bytes]:
    """Return the header alone of a batch that `place_batch` has placed."""
    first = buffers[0]
    return [first] if len(first) == HEADER_BYTES else [first, memoryview(buffers[1])[: HEADER_BYTES - len(first)]]


def _refuse_numbers(header: BatchHeader) -> RecordError:
    """Return the error for a header in which the numbers of records, or producer and sequence, do not fit together."""
    count, last_delta = header.record_count, header.last_offset_delta
    if count <= 0 or count != last_delta + 1:
        reason = f"the batch says it has {count} records and a last offset delta of {last_delta}"
    else:
        reason = f"producer {header.producer_id} sends no sequence number"
    return RecordError(ErrorCode.INVALID_RECORD, reason)


def _open_inline(records: Bytes, header: BatchHeader, config: TopicConfig, now_ms: int) -> tuple[int, int]:
    try:
        payload = _open(records, header, INLINE_PAYLOAD_BYTES_MAX)
    except PayloadTooLarge:
        raise NeedsWorker from None
    return check_payload(payload, 0, header, config, now_ms)


def _open(batch: Bytes, header: BatchHeader, max_bytes: int) -> Bytes:
    """Return the batch's records, decompressed. Raises PayloadTooLarge, or RecordError if decompression fails."""
    codec, payload = header.codec, memoryview(batch)[HEADER_BYTES:]
    if codec is Codec.NONE:
        return payload
    try:
        check_portable(codec, payload)
        return decompress(codec, payload, max_bytes)
    except PayloadTooLarge:
        raise
    except DecompressError as error:
        raise RecordError(ErrorCode.INVALID_RECORD, f"the records cannot be decompressed: {error.message}") from None


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


def _check_kind(header: BatchHeader, takes_transactional: bool) -> None:
    """Raise RecordError if a client must not send a batch that is transactional, or a control batch."""
    if header.is_control:
        raise RecordError(ErrorCode.INVALID_RECORD, "clients must not send control batches")
    if not takes_transactional:
        raise RecordError(ErrorCode.INVALID_TXN_STATE, "no transaction is open for this producer on this partition")
    if header.producer_id < 0:
        raise RecordError(ErrorCode.INVALID_RECORD, "a transactional batch must have a producer id")


def needs_worker(header: BatchHeader, config: TopicConfig) -> bool:
    """Return whether `prepare_batch` must come before the append: the batch is large, or stored under another codec."""
    codec = header.codec
    if codec is not _CODEC_OF_TYPE.get(config.compression_type, codec):
        return True
    if codec is Codec.NONE:
        return header.size_bytes > INLINE_PLAIN_BYTES_MAX
    if config.flowstone_validation != VALIDATE_RECORDS:
        return "compact" in config.cleanup_policy
    return header.size_bytes > INLINE_STORED_BYTES_MAX


def prepare_batch(
    batch: Bytes, config: TopicConfig, now_ms: int, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> Prepared | None:
    """Validate the batch's records and return the batch under the topic's codec. For a worker thread. Raises
    RecordError.
    """
    header = parse_header(batch)
    _check_size(header, header.size_bytes, len(batch), config)
    if not checksum_matches(batch, 0, header):
        raise RecordError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match")
    try:
        payload = _open(batch, header, max_bytes)
    except PayloadTooLarge as error:
        if max_bytes < DECOMPRESSED_BYTES_MAX:
            return None
        raise RecordError(ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {error.message}") from None
    timestamps = Timestamps(*check_payload(payload, 0, header, config, now_ms))
    codec = header.codec
    target = _CODEC_OF_TYPE.get(config.compression_type, codec)
    if target is codec:
        return Prepared(batch, timestamps)
    stored = compress(target, payload, _level(target, config))
    attributes = header.attributes & ~CODEC_MASK | target
    return Prepared(encode_header(header._replace(attributes=attributes), stored) + stored, timestamps)


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
