"""Reading one log without waiting for the disk: what is not in the page cache raises `NotCached`.

Finds batches by offset and by time, and the aborted transactions among them: the implementation of `PartitionLog`'s
methods with the same names. Reads the log's offsets and segments as they are at each call, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition import timestamps
from flowstone.log.partition.aborted_transactions import AbortedTransaction, end_of_slice, find_aborted
from flowstone.log.partition.file_errors import file_error
from flowstone.log.segments.cached_reads import LogSlice
from flowstone.log.segments.partition_directory import LogPosition

if TYPE_CHECKING:
    from flowstone.log.partition.partition_log import PartitionLog


def aborted_transactions(log: PartitionLog, start: int, end: int, records: LogSlice | None) -> list[AbortedTransaction]:
    try:
        segments = log.store.segments.from_offset(start)
        for segment in segments:
            if segment.transactions.size_bytes:
                break
        else:
            return []
        if records is not None:
            end = min(end, end_of_slice(segments, records, end))
        return find_aborted(segments, start, end, log.found_aborts)
    except OSError as error:
        raise file_error(log.topic_partition, error) from error


def read(log: PartitionLog, offset: int, max_bytes: int, until: LogPosition, *, at_least_one: bool) -> LogSlice | None:
    """Return bytes of one segment up to `until`, from the batch that contains `offset`, or the first one after it.

    Returns None if there are none, or if the first batch is above `max_bytes` and `at_least_one` is not set. Raises
    NotCached.
    """
    if not log.log_start_offset <= offset <= log.end.offset:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{log.topic_partition} has {log.log_start_offset} to {log.end.offset}, not {offset}",
        )
    if offset >= until.offset:
        return None
    try:
        segment, position, batch_bytes = log.store.segments.locate(offset)
        if batch_bytes > max_bytes:
            if not at_least_one:
                return None
            max_bytes = batch_bytes
        file = segment.log.get()
    except OSError as error:
        raise file_error(log.topic_partition, error) from error
    end = segment.size_bytes
    if segment.base_offset == until.segment_base_offset:
        end = min(end, until.position)  # the segment may have been compacted since
    return LogSlice(file, position, min(max_bytes, end - position))


def position_of(log: PartitionLog, offset: int) -> LogPosition:
    """Return where the batch that contains `offset`, or the first one after it, begins. Raises NotCached."""
    assert log.log_start_offset <= offset <= log.end.offset
    if offset == log.end.offset:
        return log.end
    segment, position, _batch_bytes = log.store.segments.locate(offset)
    return LogPosition(offset, segment.base_offset, position)


def find_timestamp(log: PartitionLog, target_ms: int) -> LogSlice | None:
    """Return the batch with the first record at or after `target_ms` (see `timestamps`). Raises NotCached."""
    segments = log.store.segments.from_offset(log.log_start_offset)
    return timestamps.find_batch(segments, target_ms, log.log_start_offset)


def max_timestamp(log: PartitionLog) -> tuple[int, LogSlice] | None:
    """Return the newest timestamp and the first batch that has it, or None for an empty log. Raises NotCached."""
    return timestamps.newest_batch(log.store.segments.from_offset(log.log_start_offset))
