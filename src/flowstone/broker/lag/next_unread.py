"""The log's data on a group's next unread record: its age, and the segment that retention may delete.

Runs on the loop and never blocks on the disk: bytes that are not in the page cache are read by a worker. A record's
time is exact to `TIMESTAMP_PRECISION_MS`; a batch is decompressed only if its own timestamps are further apart.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial

from flowstone.broker.lag.headroom import UnreadSegment, growing_s
from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.workers import Workers
from flowstone.errors import ApiError
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.timestamps import first_record_at
from flowstone.log.segments.cached_reads import LogSlice, read_cached
from flowstone.log.segments.index_pair import NO_TIMESTAMP
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.wire.record_batch import HEADER_BYTES, BatchHeader, CorruptBatch, parse_header

TIMESTAMP_PRECISION_MS = 1000
# Cached timestamps: the record of a group that does not progress is read once.
TIMESTAMPS_MAX = 100_000


class UnreadTimestamps:
    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        # Timestamps by log and offset; they never change.
        self._known: dict[tuple[PartitionLog, int], int] = {}
        self._asked: set[tuple[PartitionLog, int]] = set()

    async def of(self, partition: Partition, offset: int) -> int | None:
        """Return the timestamp of the first record at or after `offset`, which must be in the log, or None."""
        key = partition.log, offset
        self._asked.add(key)
        found = self._known.get(key)
        if found is None:
            try:
                found = await self._read(partition, offset)
            except (ApiError, CorruptBatch):  # the partition went offline, or the record has just been deleted
                return None
            if len(self._known) >= TIMESTAMPS_MAX:
                self._known.clear()
            self._known[key] = found
        return found if found != NO_TIMESTAMP else None

    def forget_unasked(self) -> None:
        """Drop the timestamps that no caller has asked for since the last call, with the logs that they refer to."""
        self._known = {key: timestamp for key, timestamp in self._known.items() if key in self._asked}
        self._asked.clear()

    async def _read(self, partition: Partition, offset: int) -> int:
        located = await read_when_cached(self._workers, partition, partial(_batch_at, partition, offset))
        if located is None:
            return NO_TIMESTAMP
        header, batch = located
        if header.uses_log_append_time:
            return header.max_timestamp
        spread_ms = header.max_timestamp - header.base_timestamp
        if not header.has_delete_horizon and (offset <= header.base_offset or spread_ms < TIMESTAMP_PRECISION_MS):
            return header.base_timestamp
        record = await self._workers.read(lambda: first_record_at(batch.read(), NO_TIMESTAMP, offset))
        return record[1] if record is not None else header.max_timestamp


def _batch_at(partition: Partition, offset: int) -> tuple[BatchHeader, LogSlice] | None:
    """Return the header and slice of the batch that holds `offset`, or None if it is not committed.

    Raises NotCached if the header must be read by a worker.
    """
    batch = partition.local.read_as(Reader.UNCOMMITTED, offset, 0, at_least_one=True)
    if batch is None:
        return None
    return parse_header(read_cached(batch.file, batch.position, HEADER_BYTES)), batch


async def unread_segment(
    workers: Workers, partition: Partition, offset: int, rate_bytes_per_s: float, now_ms: int
) -> UnreadSegment:
    """Return the segment that holds the next unread record. Raises ApiError if the partition is offline."""
    return await read_when_cached(
        workers, partition, partial(_segment_at, partition.log, offset, rate_bytes_per_s, now_ms)
    )


def _segment_at(log: PartitionLog, offset: int, rate_bytes_per_s: float, now_ms: int) -> UnreadSegment:
    segments = log.segments
    at = max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    segment = segments[at]
    newest_ms = segment.latest_timestamp() if segment.size_bytes else NO_TIMESTAMP
    growing = 0.0
    if segment is segments[-1]:
        begun_ms = segment.first_timestamp if segment.first_timestamp >= 0 else segment.created_ms
        growing = growing_s(segment.size_bytes, begun_ms, log.config, rate_bytes_per_s, now_ms)
    return UnreadSegment(
        newest_ms=newest_ms if newest_ms >= 0 else segment.created_ms,
        bytes_through=sum(each.size_bytes for each in segments[: at + 1]),
        log_bytes=log.size_bytes,
        growing_s=growing,
    )
