"""Reads of what is not in the page cache: a worker fetches it, then the loop reads again.

Somebody else's flush waits for whatever the disk has been asked for before it. So a reader of old data asks for little
at a time, and the system is told not to read ahead: it would, by megabytes where a disk is set up so, and a flush then
took ten times as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from flowstone.broker.workers import Workers
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.reading import NotCached
from flowstone.ports.files import File
from flowstone.replication.partition import Partition

# How often one request reads again because its bytes were not in the page cache.
COLD_READS_MAX = 64
# What is asked of the disk at a time: a millisecond's worth, of slow ones.
COLD_PIECE_BYTES = 256 << 10

T = TypeVar("T")


def bring_in(file: File, position: int, count: int) -> None:
    """Waits until the page cache has the bytes, in a worker. OSError if the disk fails."""
    with suppress(OSError):  # a simulated file has no descriptor; what is wrong with another, reading it will say
        if hasattr(os, "posix_fadvise"):  # not on macOS
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    for at in range(position, position + count, COLD_PIECE_BYTES):
        file.read(at, min(COLD_PIECE_BYTES, position + count - at))


async def warm(workers: Workers, partition: Partition, cold: NotCached) -> None:
    """Has a worker bring the bytes into the page cache. If the disk fails, so does the partition."""
    try:
        await workers.read(lambda: bring_in(cold.file, cold.position, cold.count))
    except StorageFault as fault:
        partition.fail(fault)
    except OSError as error:
        partition.fail(StorageFault(f"{cold.file.path} cannot be read: {error}"))


async def read_when_cached(workers: Workers, partition: Partition, read: Callable[[], T]) -> T:
    """What `read` returns, called again for as long as it raises NotCached. ApiError if the partition fails."""
    for _ in range(COLD_READS_MAX):
        partition.check_serving()
        try:
            return read()
        except NotCached as cold:
            await warm(workers, partition, cold)
        except StorageFault as fault:
            partition.fail(fault)
    partition.check_serving()
    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "the page cache does not keep what is read; try again")
