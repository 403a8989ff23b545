"""What a read needs first is its own business: not always bytes, it may be an index or a search."""

from __future__ import annotations

import asyncio

from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.workers import Workers
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
