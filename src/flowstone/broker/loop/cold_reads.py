"""Reads of bytes that are not in the page cache: a worker reads them into it, then the loop reads again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flowstone.broker.loop.workers import Workers
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.segments.cached_reads import NotCached
from flowstone.replication.partition import Partition

# How often one request reads again because its bytes were not in the page cache.
COLD_READS_MAX = 64

T = TypeVar("T")


async def warm(workers: Workers, partition: Partition, cold: NotCached) -> None:
    """Let a worker read the bytes into the page cache. If the disk fails, the partition fails."""
    try:
        await workers.read(cold.warm)
    except StorageFault as fault:
        partition.local.fail(fault)
    except OSError as error:
        partition.local.fail(StorageFault(f"{cold.file.path} cannot be read: {error}"))


async def read_when_cached(workers: Workers, partition: Partition, read: Callable[[], T]) -> T:
    """Call `read` until it does not raise NotCached; return its result. Raises ApiError if the partition fails."""
    for _ in range(COLD_READS_MAX):
        partition.local.check_serving()
        try:
            return read()
        except NotCached as cold:
            await warm(workers, partition, cold)
        except StorageFault as fault:
            partition.local.fail(fault)
    partition.local.check_serving()
    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "the page cache evicts the records before they are sent; try again")
