"""Partitions of internal topics as coordinators see them: `coordinator.internal_log`, over a partition of ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.workers import Workers
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.replication.partition import ACKS_ALL, Partition
from flowstone.replication.readers import Reader
from flowstone.wire.record_batch import parse_header


class PartitionInternalLog:
    def __init__(self, partition: Partition, workers: Workers) -> None:
        self._partition, self._workers = partition, workers

    @property
    def log_start_offset(self) -> int:
        return self._partition.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._partition.log.log_end_offset

    @property
    def batch_bytes_max(self) -> int:
        return self._partition.log.config.max_message_bytes

    @property
    def is_committed(self) -> bool:
        partition = self._partition
        local = partition.local
        return (
            local.high_watermark.offset >= partition.log.log_end_offset
            and local.fault is None
            and local.closed_with is None
            and partition.is_leader
            and partition.holds_lease
        )

    def check_producer(self, batch: bytes, transaction_version: int) -> None:
        self._partition.log.producers.check_own(batch, parse_header(batch), transaction_version)

    def append(self, batch: bytes) -> int:
        return self._partition.append(batch, ACKS_ALL, is_own=True).last_offset + 1

    def when_committed(self, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        """Without the lease there may be another coordinator, who knows of later commits: then reads fail, too."""
        try:
            self._partition.local.check_serving()  # one that is offline or closed would never call back
        except ApiError as error:
            callback(error.code)
        else:
            if self._partition.holds_lease:
                self._partition.when_committed(offset, callback)
            else:
                callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def read(self, offset: int, max_bytes: int) -> bytes:
        find = partial(self._partition.local.read_as, Reader.UNCOMMITTED, offset, max_bytes, at_least_one=True)
        batches = await read_when_cached(self._workers, self._partition, find)
        if batches is None:
            return b""
        try:
            return await self._workers.read(batches.read)
        except (OSError, StorageFault) as error:
            self._partition.local.fail(StorageFault(f"{self._partition.topic_partition} cannot be read: {error}"))
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
