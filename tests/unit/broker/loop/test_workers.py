from __future__ import annotations

import asyncio
from threading import Event, Semaphore

import pytest

from flowstone.broker.loop.login_checks import LOGIN_CHECKS_MAX
from flowstone.broker.loop.workers import Workers
from flowstone.broker.requests.session import ClientSession
from flowstone.errors import ProtocolError

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


def test_checks_of_logins_are_limited_and_delay_no_other_work() -> None:
    released = Event()

    async def body() -> None:
        workers, client = Workers(1), ClientSession("SASL", "10.0.0.1:1")
        checks = [workers.check_login(lambda: released.wait(WAIT_S), client) for _ in range(LOGIN_CHECKS_MAX)]
        with pytest.raises(ProtocolError, match="logins wait"):
            await workers.check_login(lambda: True, client)
        assert await asyncio.wait_for(workers.compute(lambda: "computed"), WAIT_S) == "computed"
        released.set()
        assert all(await asyncio.gather(*checks))
        assert await workers.check_login(lambda: "checked", client) == "checked"
        workers.close()

    asyncio.run(body())
