"""Batches that are stored otherwise than they came: another codec, or a check that needs decompression.

A worker does it, and the loop goes on. Appends to a partition keep their order: while one batch is being rewritten, all
that come after it for the same partition wait for their turn, whether they need rewriting or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from flowstone.broker.workers import Workers
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.validation import needs_rewrite, rewrite_batch
from flowstone.replication.partition import Partition
from flowstone.types import Bytes
from flowstone.wire.record_batch import parse_header

# Batches held in memory for rewriting, over all partitions; beyond it a producer is told to try again.
QUEUED_BYTES_MAX = 128 << 20


class Rewriting:
    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._turns: dict[Partition, asyncio.Lock] = {}
        self._queued_bytes = 0

    def is_due(self, partition: Partition, records: Bytes) -> bool:
        config = partition.log.config
        if config.compression_type == "producer" and "compact" not in config.cleanup_policy and not self._turns:
            return False
        return partition in self._turns or needs_rewrite(parse_header(records), config)

    async def append(self, partition: Partition, batch: bytes, append: Callable[[bytes], None]) -> None:
        """Calls `append` with the batch as it is to be stored, when its turn has come."""
        size_bytes = len(batch)
        if self._queued_bytes + size_bytes > QUEUED_BYTES_MAX:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many batches wait for recompression; try again")
        self._queued_bytes += size_bytes
        turn = self._turns.setdefault(partition, asyncio.Lock())
        try:
            async with turn:
                config = partition.log.config
                if needs_rewrite(parse_header(batch), config):
                    batch = await self._workers.compute(partial(rewrite_batch, batch, config))
                append(batch)
        finally:
            self._queued_bytes -= size_bytes
            if not turn.locked() and self._turns.get(partition) is turn:
                del self._turns[partition]
