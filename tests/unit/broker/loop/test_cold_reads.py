"""What a read needs first is its own business: not always bytes, it may be an index or a search."""

from __future__ import annotations

import asyncio

import pytest

from flowstone.broker.loop.cold_reads import COLD_READS_MAX, read_when_cached
from flowstone.broker.loop.workers import Workers
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.segments.cached_reads import NotCached
from flowstone.ports.simulated_files import SimulatedFiles
from tests.support.partitions import ON_DISK, a_partition


def test_a_worker_does_what_the_read_asks_for_before_it_is_tried_again() -> None:
    file = SimulatedFiles().open("/log", create=True)
    built: list[str] = []

    class IndexIsMissing(NotCached):
        def warm(self) -> None:
            built.append("index")

    def read() -> str:
        if not built:
            raise IndexIsMissing(file, 0, 1)
        return "found"

    async def body() -> None:
        workers = Workers(1)
        assert await read_when_cached(workers, a_partition(ON_DISK)[0], read) == "found"
        workers.close()

    asyncio.run(body())
    assert built == ["index"]


def test_a_read_that_finds_the_log_damaged_takes_the_partition_offline() -> None:
    partition, _ = a_partition(ON_DISK)

    def read() -> str:
        raise StorageFault("/log is damaged")

    async def body() -> None:
        workers = Workers(1)
        with pytest.raises(ApiError, match="/log is damaged") as error:
            await read_when_cached(workers, partition, read)
        assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        workers.close()

    asyncio.run(body())
    assert partition.local.fault is not None


def test_a_read_is_tried_up_to_a_limit_and_then_refused() -> None:
    file = SimulatedFiles().open("/log", create=True)
    tries: list[int] = []

    class Evicted(NotCached):
        def warm(self) -> None:
            pass

    def read() -> str:
        tries.append(1)
        if len(tries) % COLD_READS_MAX:
            raise Evicted(file, 0, 1)
        return "found"

    def never() -> str:
        raise Evicted(file, 0, 1)

    async def body() -> None:
        workers = Workers(1)
        partition = a_partition(ON_DISK)[0]
        assert await read_when_cached(workers, partition, read) == "found"
        with pytest.raises(ApiError, match="evicts") as error:
            await read_when_cached(workers, partition, never)
        assert error.value.code is ErrorCode.REQUEST_TIMED_OUT
        workers.close()

    asyncio.run(body())
