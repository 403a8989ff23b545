"""Consume, transform, produce with aiokafka: each order is billed exactly once, whatever fails.

The scene is that of `confluent_loop`.
"""

from __future__ import annotations

import asyncio
from itertools import chain

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import ProducerFenced

from examples.patterns import stage
from examples.transactions.scene import BATCH, Price, Result, play


class Worker:
    def __init__(self, bootstrap: str, orders: str, bills: str) -> None:
        self._group_id, self._bills = orders, bills
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{orders}-1")
        self._consumer = AIOKafkaConsumer(
            orders,
            bootstrap_servers=bootstrap,
            group_id=orders,
            group_instance_id="1",
            isolation_level="read_committed",
            enable_auto_commit=False,  # the transaction commits the offsets
            auto_offset_reset="earliest",
        )

    async def start(self) -> None:
        await self._producer.start()  # aborts the previous worker's open transaction and fences that worker
        await self._consumer.start()

    async def bill(self, price: Price) -> int:
        """Bill the next orders in one transaction; return how many. After an abort, the next call reads them again."""
        batch = await self._consumer.getmany(timeout_ms=stage.TIMEOUT_S * 1000, max_records=BATCH)
        try:
            async with self._producer.transaction():  # commits at its end, aborts after an error
                orders = chain.from_iterable(batch.values())
                sent = [await self._producer.send(self._bills, price(order.value), order.key) for order in orders]
                await asyncio.gather(*sent)
                read_to = {each: records[-1].offset + 1 for each, records in batch.items()}
                await self._producer.send_offsets_to_transaction(read_to, self._group_id)
        except ProducerFenced:
            raise  # another worker uses this transactional_id, and has aborted the transaction
        except Exception:
            for partition, records in batch.items():
                self._consumer.seek(partition, records[0].offset)
            raise
        return sum(map(len, batch.values()))

    async def close(self) -> None:
        await self._consumer.stop()
        await self._producer.stop()


class WorkerWithLoop:
    """A worker with an event loop of its own, for the scene."""

    def __init__(self, bootstrap: str, orders: str, bills: str) -> None:
        self._runner = asyncio.Runner()
        self._worker = self._runner.run(started(bootstrap, orders, bills))

    def bill(self, price: Price) -> int:
        return self._runner.run(self._worker.bill(price))

    def close(self) -> None:
        self._runner.run(self._worker.close())
        self._runner.close()


async def started(bootstrap: str, orders: str, bills: str) -> Worker:
    worker = Worker(bootstrap, orders, bills)
    await worker.start()
    return worker


def run(bootstrap: str) -> Result:
    return play(bootstrap, WorkerWithLoop)


if __name__ == "__main__":
    stage.main(run)
