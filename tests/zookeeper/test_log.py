"""The metadata log in a real ZooKeeper: one order for all, each append once, whoever races and whatever breaks."""

from __future__ import annotations

import asyncio

from tests.support.zookeeper_ties import Ties, count_one, found, note


def test_what_one_broker_appends_every_broker_sees(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as (first, second):
            await first.metadata.append(found())
            await first.metadata.append(note("x"))
            await second.until_version(1)
            assert second.image == first.image

    asyncio.run(body())


def test_brokers_that_race_lose_nothing_and_make_nothing_twice(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b", "c") as brokers:

            async def count(many: int, broker: int) -> list[int]:
                return [await brokers[broker].metadata.change(count_one) for _ in range(many)]

            taken = await asyncio.gather(
                *(count(100, broker) for broker in range(3)), *(count(25, 0) for _ in range(8))
            )
            numbers = [number for each in taken for number in each]
            assert sorted(numbers) == list(range(500))
            for broker in brokers:
                await broker.until_version(499)
            assert brokers[0].image == brokers[1].image == brokers[2].image

    asyncio.run(body())
