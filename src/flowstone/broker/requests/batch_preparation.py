"""Batches that a worker prepares before they are appended: large compressed ones, and those stored under another codec.

The event loop goes on meanwhile. Appends to a partition keep their order: while one batch is being prepared, all later
batches for the same partition wait, whether they need a worker or not.

Workers are shared fairly. The batches of a request are prepared one after the other, and the connection's next request
is not handled before all are appended. So each connection has at most one batch at the workers, which take batches in
the order of arrival. Batches that take long wait for each other only.

The records of a large batch are then written in several steps (`log.partition.large_appends`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.loop.workers import Workers
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import WrittenAhead
from flowstone.log.partition.record_checks import Timestamps
from flowstone.log.partition.validation import NeedsWorker, needs_worker, prepare_batch
from flowstone.ports.clock import Clock
from flowstone.replication.partition import Partition
from flowstone.types import Bytes
from flowstone.wire.record_batch import parse_header

# Bytes of requests whose batches are appended later, over all connections; beyond it a producer has to retry.
QUEUED_BYTES_MAX = 128 << 20

# Batches that are larger than this when decompressed are prepared one after the other, by a thread for them.
QUICK_PAYLOAD_BYTES_MAX = 8 << 20

Append = Callable[[Bytes, Timestamps | None, WrittenAhead | None], None]


class _Queue:
    """The batches of one partition that are prepared, one at a time, or wait."""

    __slots__ = ("batches", "lock")

    def __init__(self) -> None:
        self.lock, self.batches = asyncio.Lock(), 0


class Preparing:
    def __init__(self, workers: Workers, clock: Clock) -> None:
        self._workers, self._clock = workers, clock
        self._queues: dict[Partition, _Queue] = {}
        self._queued_bytes = 0

    def reserve(self, size_bytes: int) -> None:
        """Reserve memory for a request kept for later; one alone may be larger. Raises ApiError at the limit."""
        if self._queued_bytes and self._queued_bytes + size_bytes > QUEUED_BYTES_MAX:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many batches wait to be checked; try again")
        self._queued_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release a reservation."""
        self._queued_bytes -= size_bytes

    def is_due(self, partition: Partition, records: Bytes) -> bool:
        """Return whether the batch must be appended with `append`: it needs a worker, or must wait for earlier batches.

        A compressed batch that is too large for the loop is detected only when it is decompressed (`NeedsWorker`).
        """
        config = partition.log.config
        if config.compression_type == "producer" and "compact" not in config.cleanup_policy and not self._queues:
            return False
        return partition in self._queues or needs_worker(parse_header(records), config)

    async def append(self, partition: Partition, batch: Bytes, append: Append) -> None:
        """Call `append` with the prepared batch, after all earlier ones of the partition. Raises ApiError."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _Queue()
        queue.batches += 1
        try:
            async with queue.lock:
                await self._append_in_order(partition, batch, append)
        finally:
            queue.batches -= 1
            if not queue.batches:
                del self._queues[partition]

    async def _append_in_order(self, partition: Partition, batch: Bytes, append: Append) -> None:
        config = partition.log.config
        if not needs_worker(parse_header(batch), config):
            try:
                append(batch, None, None)
                return
            except NeedsWorker:
                pass
        prepare = partial(prepare_batch, batch, config, self._clock.time_ms())
        prepared = await self._workers.compute(partial(prepare, max_bytes=QUICK_PAYLOAD_BYTES_MAX))
        if prepared is None:
            prepared = await self._workers.compute_slowly(prepare)
        assert prepared is not None
        written = await self._write_ahead(partition, prepared.batch)
        try:
            append(prepared.batch, prepared.timestamps, written)
        finally:
            if written is not None:
                written.cut_off()

    async def _write_ahead(self, partition: Partition, batch: Bytes) -> WrittenAhead | None:
        """Write most of a large batch in steps; return what was written, or None if the append must write it all."""
        if not _is_serving(partition):
            return None
        written = partition.log.begin_large_append(batch, self._clock.time_ms())
        if written is None:
            return None
        slices = TimeSlices(self._clock.monotonic)
        for _ in written.steps():
            await slices.yield_if_due()
            if not _is_serving(partition):
                if partition.local.closed_with is None:  # or else a clean stop has removed it, or recovery will
                    written.cut_off()
                return None
        return written


def _is_serving(partition: Partition) -> bool:
    return partition.is_leader and partition.local.closed_with is None and partition.local.fault is None
