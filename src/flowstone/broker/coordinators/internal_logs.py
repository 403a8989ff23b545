"""Implementation of `coordinator.internal_log` over the partitions of this broker."""

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
        return self._partition.log.end.offset

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

    def when_committed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back when all records appended so far are committed, with an error if this broker has lost its lease.

        Without the lease another broker may already coordinate, with newer commits; so reads wait for this too.
        """
        partition, local = self._partition, self._partition.local
        if local.fault is not None:  # such a partition would never call back, nor would a closed one
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        elif local.closed_with is not None:
            callback(local.closed_with)
        elif partition.holds_lease:
            partition.when_committed(partition.log.end.offset, callback)
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
