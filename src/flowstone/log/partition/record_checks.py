"""The checks of a batch's records, decompressed: structure, count, keys and timestamps.

Pure: bytes and settings in; the oldest and newest timestamp out, or `RecordError`, which names the records that are
wrong as Kafka does. Nothing here loops over records in Python: the kernel walks them, and walks them a second time only
to name those that are refused.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.config import TopicConfig
from flowstone.errors import BadRecord, ErrorCode, RecordError
from flowstone.kernel import RecordsStatus, check_records, find_refused
from flowstone.types import Bytes
from flowstone.wire.record_batch import BatchHeader

NO_TIMESTAMP = -1
TIMESTAMP_MAX = 2**63 - 1
# A refused batch names at most this many of its bad records; a producer that drops those is told of the next ones.
RECORD_ERRORS_MAX = 500


class Timestamps(NamedTuple):
    """The oldest and the newest timestamp of a batch's records, which have been validated."""

    oldest: int
    newest: int


def check_payload(
    payload: Bytes, position: int, header: BatchHeader, config: TopicConfig, now_ms: int
) -> tuple[int, int]:
    """Return the oldest and newest timestamp of the uncompressed records that begin at `position` of `payload`.

    Raises RecordError if the records are malformed, are not as many as the header says, lack a key on a compacted
    topic, or have a timestamp that the topic does not take.
    """
    count, base_timestamp = header.record_count, header.base_timestamp
    status, record_index, null_keys, min_delta, max_delta, _ = check_records(
        payload, position, len(payload) - position, count
    )
    if status:
        raise _malformed(status, record_index, count)
    oldest, newest = base_timestamp + min_delta, base_timestamp + max_delta
    if oldest < -TIMESTAMP_MAX or newest > TIMESTAMP_MAX:
        raise RecordError(ErrorCode.INVALID_TIMESTAMP, "a record's timestamp does not fit 64 bits")
    if (
        (null_keys and "compact" in config.cleanup_policy)
        or newest - now_ms > config.message_timestamp_after_max_ms
        or now_ms - oldest > config.message_timestamp_before_max_ms
    ):
        _refuse_records(payload, position, header, config, now_ms)
    return oldest, newest


def _malformed(status: RecordsStatus, record_index: int, count: int) -> RecordError:
    if status in (RecordsStatus.TRAILING_BYTES, RecordsStatus.TRUNCATED):  # the header's count is wrong, not a record
        found = "more bytes follow" if status is RecordsStatus.TRAILING_BYTES else f"they end in record {record_index}"
        return RecordError(ErrorCode.INVALID_RECORD, f"the batch says it has {count} records, but {found}")
    message = f"record {record_index} of {count} is malformed: {status.name.lower().replace('_', ' ')}"
    return RecordError(ErrorCode.INVALID_RECORD, message, (BadRecord(record_index, message),))


def _refuse_records(payload: Bytes, position: int, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Raise RecordError if a record has no key where it needs one, or a timestamp out of range.

    Records without a timestamp skip the check of timestamps, and with LogAppendTime all records do.
    """
    before_ms, after_ms = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    base = header.base_timestamp
    is_stamped = config.message_timestamp_type == "LogAppendTime"
    found = find_refused(
        payload,
        position,
        len(payload) - position,
        header.record_count,
        needs_key="compact" in config.cleanup_policy,
        low_delta=-TIMESTAMP_MAX if is_stamped else _within_long(now_ms - before_ms - base),
        high_delta=TIMESTAMP_MAX if is_stamped else _within_long(now_ms + after_ms - base),
        exempt_delta=_within_long(NO_TIMESTAMP - base),
        limit=RECORD_ERRORS_MAX,
    )
    bad, code = [], ErrorCode.INVALID_RECORD
    for index, is_keyless, timestamp_delta in found:
        if is_keyless:
            message = "the record has no key; a topic with cleanup.policy=compact needs one in each record"
        else:
            message, code = _out_of_range(base + timestamp_delta, config, now_ms), ErrorCode.INVALID_TIMESTAMP
        bad.append(BadRecord(index, message))
    if bad:
        count = f"{len(bad)} or more" if len(bad) == RECORD_ERRORS_MAX else str(len(bad))
        told = f"{count} of {header.record_count} records refused; record {bad[0].batch_index}: {bad[0].message}"
        raise RecordError(code, told, tuple(bad))


def _out_of_range(timestamp: int, config: TopicConfig, now_ms: int) -> str:
    if timestamp > now_ms:
        limit = f"message.timestamp.after.max.ms allows {config.message_timestamp_after_max_ms}"
        return f"timestamp {timestamp} is {timestamp - now_ms} ms ahead of the broker's clock; {limit}"
    limit = f"message.timestamp.before.max.ms allows {config.message_timestamp_before_max_ms}"
    return f"timestamp {timestamp} is {now_ms - timestamp} ms behind the broker's clock; {limit}"


def check_stated_timestamps(oldest: int, newest: int, config: TopicConfig, now_ms: int) -> None:
    """Raise RecordError if a header states record timestamps that are out of range. No record is read."""
    if oldest != NO_TIMESTAMP and now_ms - oldest > config.message_timestamp_before_max_ms:
        raise RecordError(ErrorCode.INVALID_TIMESTAMP, _out_of_range(oldest, config, now_ms))
    if newest - now_ms > config.message_timestamp_after_max_ms:
        raise RecordError(ErrorCode.INVALID_TIMESTAMP, _out_of_range(newest, config, now_ms))


def _within_long(value: int) -> int:
    return max(-TIMESTAMP_MAX, min(value, TIMESTAMP_MAX))
