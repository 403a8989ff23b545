"""Tellers of aiokafka: see `tests.chaos.teller`, whose arguments and lines these are."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as ClientPartition
from aiokafka.errors import KafkaError

from flowstone.types import TopicPartition
from tests.chaos.teller import ABORT_CHANCE, ORDERS_MAX, PACE_S, START_OVER_S, TRANSACTION_TIMEOUT_MS, Job, main, say
from tests.chaos.transfers import Leg, transfer

CALL_TIMEOUT_S, CLOSE_S = 20.0, 5.0
POLL_MS = 500


class AiokafkaTeller:
    """Its input partition, its transactional id and its event loop are its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._chance = random.Random(f"{job.name}-{job.number}")
        self._place = ClientPartition(job.orders, job.number)
        self._transactions = 0

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        while not self._job.ended.is_set():
            producer = AIOKafkaProducer(
                bootstrap_servers=self._job.bootstrap,
                transactional_id=f"{self._job.group}-{self._job.number}",
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                request_timeout_ms=4_000,
            )
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._job.bootstrap,
                group_id=self._job.group,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="none",
            )
            try:
                await self._serve(producer, consumer)
            except (KafkaError, TimeoutError, OSError) as error:
                say("started over", name=self._job.name, number=self._job.number, error=type(error).__name__)
                await asyncio.sleep(START_OVER_S)
            finally:
                for each in (producer, consumer):
                    with contextlib.suppress(Exception):  # it is given up, whatever it says
                        await asyncio.wait_for(each.stop(), CLOSE_S)

    async def _serve(self, producer: Any, consumer: Any) -> None:
        await asyncio.wait_for(producer.start(), CALL_TIMEOUT_S)
        await asyncio.wait_for(consumer.start(), CALL_TIMEOUT_S)
        consumer.assign([self._place])
        await self._rewind(consumer)
        while not self._job.ended.is_set():
            started_s = time.monotonic()
            count = self._chance.randint(1, ORDERS_MAX)
            found = await asyncio.wait_for(consumer.getmany(timeout_ms=POLL_MS, max_records=count), CALL_TIMEOUT_S)
            if records := found.get(self._place, []):
                await self._handle(producer, consumer, [record.offset for record in records])
                await asyncio.sleep(max(0.0, started_s + PACE_S - time.monotonic()))

    async def _rewind(self, consumer: Any) -> None:
        offset = await asyncio.wait_for(consumer.committed(self._place), CALL_TIMEOUT_S)
        if offset is None:  # aiokafka takes an error of the whole group for this, and does not look for its coordinator
            raise KafkaError("no committed offset, or no coordinator")
        consumer.seek(self._place, offset)

    async def _write(self, producer: Any, legs: list[Leg]) -> None:
        """Write all legs. aiokafka commits a transaction without those that could not be written: wait for each."""
        for leg in legs:
            where = leg.account % self._job.partitions
            await (await producer.send(self._job.accounts, leg.encode(), partition=where))

    async def _handle(self, producer: Any, consumer: Any, offsets: list[int]) -> None:
        self._transactions += 1
        transaction = f"{self._job.name}.{self._job.number}.{self._transactions}"
        orders = [(TopicPartition(self._job.orders, self._job.number), offset) for offset in offsets]
        try:
            await producer.begin_transaction()
            await asyncio.wait_for(self._write(producer, transfer(transaction, orders)), CALL_TIMEOUT_S)
            is_given_up = self._chance.random() < ABORT_CHANCE
            if not is_given_up:
                ends = {self._place: offsets[-1] + 1}
                commit = producer.send_offsets_to_transaction(ends, self._job.group)
                await asyncio.wait_for(commit, CALL_TIMEOUT_S)
        except (KafkaError, TimeoutError):
            say("aborted", transaction=transaction, is_asked=False)
            raise
        if is_given_up:
            say("aborted", transaction=transaction, is_asked=False)
            await asyncio.wait_for(producer.abort_transaction(), CALL_TIMEOUT_S)
            await self._rewind(consumer)
        else:
            await asyncio.wait_for(producer.commit_transaction(), CALL_TIMEOUT_S)
            say("committed", transaction=transaction)


if __name__ == "__main__":
    main(sys.argv[1:], AiokafkaTeller)
