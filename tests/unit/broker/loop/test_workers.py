from __future__ import annotations

import asyncio
from threading import Event, Semaphore

from flowstone.broker.loop.workers import Workers

WAIT_S = 10


def test_reads_that_run_and_wait_are_finished_while_the_number_of_readers_changes() -> None:
    entered, released = Semaphore(0), Event()

    def read() -> str:
        entered.release()
        assert released.wait(WAIT_S)
        return "read"

    def wait_entered(count: int) -> bool:
        return all(entered.acquire(timeout=WAIT_S / 2) for _ in range(count))

    async def body() -> None:
        workers = Workers(1)
        reads = [workers.read(read) for _ in range(6)]
        assert await asyncio.to_thread(wait_entered, 1)
        assert not entered.acquire(blocking=False)
        workers.resize_readers(4)
        assert await asyncio.to_thread(wait_entered, 3)
        workers.resize_readers(1)
        released.set()
        assert await asyncio.gather(*reads, workers.read(lambda: "another")) == ["read"] * 6 + ["another"]
        workers.close()

    asyncio.run(body())
