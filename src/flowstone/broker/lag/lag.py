"""Lag of a group in one partition: in records and seconds, and headroom.

All three are measured at the group's *next unread record*, the one at the committed offset:

- lag, in records: from there to the high watermark, as Kafka's tools count it;
- lag in seconds: the age of that record (`next_unread`);
- headroom: the seconds until retention may delete it (`headroom`).

For a partition without a replica on this broker only the lag in records is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowstone.broker.disks.append_rates import AppendRates
from flowstone.broker.lag.group_status import PartitionLag
from flowstone.broker.lag.headroom import headroom_s, is_low
from flowstone.broker.lag.next_unread import UnreadTimestamps, unread_segment
from flowstone.broker.requests.context import Services
from flowstone.errors import ApiError
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition

if TYPE_CHECKING:
    from flowstone.broker.clustering.remote_offsets import Bounds, RemoteOffsets


class Lags:
    def __init__(self, services: Services, remote_offsets: RemoteOffsets | None = None) -> None:
        """Create it without state. `remote_offsets` reads other brokers' logs; None if there is one broker."""
        self._services, self._clock, self._remote_offsets = services, services.clock, remote_offsets
        self._rates = AppendRates()
        self._timestamps = UnreadTimestamps(services.workers)
        self._warning_s = services.config.group_headroom_warning_ms / 1000

    async def of(self, where: TopicPartition, committed: int | None, owner: str | None) -> PartitionLag | None:
        """Return how far a group with this committed offset is behind, or None if the partition is unknown.

        `owner` is the member that reads the partition.
        """
        partition = self._services.partitions.find(where)
        if partition is None:
            bounds = await self._remote_offsets.bounds(where) if self._remote_offsets is not None else None
            return _remote_lag(where, committed, owner, bounds) if bounds is not None else None
        rate = self.append_rate(partition.log)
        start, end = partition.log.log_start_offset, partition.high_watermark.offset
        lag, lost = _records(committed, start, end)
        lag_seconds = headroom_seconds = None
        growing_seconds = 0.0
        if committed is not None:
            lag_seconds = await self._age_s(partition, max(committed, start)) if lag else 0.0
            if lost:
                headroom_seconds = 0.0
            elif lag:
                headroom_seconds, growing_seconds = await self._headroom_s(partition, committed, rate)
        return PartitionLag(
            topic=where.topic,
            partition=where.partition,
            committed_offset=committed,
            log_start_offset=start,
            high_watermark=end,
            lag=lag,
            lost=lost,
            lag_seconds=lag_seconds,
            headroom_seconds=headroom_seconds,
            is_headroom_low=is_low(headroom_seconds, self._warning_s, partition.log.config, rate),
            member_id=owner,
            growing_seconds=growing_seconds,
            last_stable_offset=partition.last_stable_offset,
        )

    def append_rate(self, log: PartitionLog) -> float:
        """Return the rate at which a log grows in bytes per second; 0 on the first call after a while."""
        return self._rates.of(log, self._clock.monotonic())

    def forget_unasked(self) -> None:
        """Drop the state of logs that no caller has asked about since the last call."""
        self._rates.forget_unasked()
        self._timestamps.forget_unasked()

    async def _age_s(self, partition: Partition, offset: int) -> float | None:
        timestamp_ms = await self._timestamps.of(partition, offset)
        return max(self._clock.time_ms() - timestamp_ms, 0) / 1000 if timestamp_ms is not None else None

    async def _headroom_s(
        self, partition: Partition, offset: int, rate_bytes_per_s: float
    ) -> tuple[float | None, float]:
        """Return the headroom, and how much of it is the time until the record's segment is sealed."""
        now_ms = self._clock.time_ms()
        try:
            segment = await unread_segment(self._services.workers, partition, offset, rate_bytes_per_s, now_ms)
        except ApiError:  # the partition is offline: no record is read or deleted
            return None, 0.0
        left_s = headroom_s(segment, partition.log.config, rate_bytes_per_s, now_ms)
        return (round(left_s, 3), round(segment.growing_s, 3) if left_s else 0.0) if left_s is not None else (None, 0.0)


def _records(committed: int | None, log_start_offset: int, end_offset: int) -> tuple[int | None, int]:
    """Return how many records the group has not read, and how many of them were deleted before it could."""
    if committed is None:
        return None, 0
    return max(end_offset - committed, 0), max(log_start_offset - committed, 0)


def _remote_lag(where: TopicPartition, committed: int | None, owner: str | None, bounds: Bounds) -> PartitionLag:
    """Return the lag in records. Only a broker with the log knows the next unread record's age and headroom."""
    start, end = bounds
    lag, lost = _records(committed, start, end)
    return PartitionLag(
        topic=where.topic,
        partition=where.partition,
        committed_offset=committed,
        log_start_offset=start,
        high_watermark=end,
        lag=lag,
        lost=lost,
        lag_seconds=0.0 if lag == 0 else None,
        headroom_seconds=0.0 if lost else None,
        member_id=owner,
    )
