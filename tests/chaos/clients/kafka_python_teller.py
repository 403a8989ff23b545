"""Tellers of kafka-python: see `tests.chaos.teller`, whose arguments and lines these are."""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as ClientPartition

from flowstone.types import TopicPartition
from tests.chaos.teller import ABORT_CHANCE, ORDERS_MAX, PACE_S, START_OVER_S, TRANSACTION_TIMEOUT_MS, Job, main, say
from tests.chaos.transfers import Leg, transfer

CALL_TIMEOUT_S, CLOSE_S = 15.0, 5.0
POLL_MS = 500


class KafkaPythonTeller:
    """Its input partition and its transactional id are its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._chance = random.Random(f"{job.name}-{job.number}")
        self._place = ClientPartition(job.orders, job.number)
        self._transactions = 0

    def run(self) -> None:
        while not self._job.ended.is_set():
            with contextlib.ExitStack() as stack:
                try:
                    self._serve(stack)
                except (KafkaError, OSError) as error:
                    say("started over", name=self._job.name, number=self._job.number, error=type(error).__name__)
                    time.sleep(START_OVER_S)

    def _serve(self, stack: contextlib.ExitStack) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._job.bootstrap.split(","),
            transactional_id=f"{self._job.group}-{self._job.number}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            request_timeout_ms=4_000,
        )
        stack.callback(_quietly, lambda: producer.close(CLOSE_S))
        producer.init_transactions()
        consumer = KafkaConsumer(
            bootstrap_servers=self._job.bootstrap.split(","),
            group_id=self._job.group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
        )
        stack.callback(_quietly, consumer.close)
        consumer.assign([self._place])
        self._rewind(consumer)
        while not self._job.ended.is_set():
            started_s = time.monotonic()
            records = consumer.poll(POLL_MS, max_records=self._chance.randint(1, ORDERS_MAX)).get(self._place, [])
            if records:
                self._handle(producer, consumer, [record.offset for record in records])
                self._job.ended.wait(max(0.0, started_s + PACE_S - time.monotonic()))

    def _rewind(self, consumer: Any) -> None:
        offset = consumer.committed(self._place)
        if offset is None:
            say("failed", error=f"{self._place} has no committed offset, and had one")
        consumer.seek(self._place, offset or 0)

    def _write(self, producer: Any, legs: list[Leg]) -> None:
        """Write all legs, and wait for each.

        Otherwise kafka-python says of a transaction that it is committed, and has not asked: once a leader has told it
        that its epoch is old, it takes a new one and counts the transaction as empty.
        """
        sent = [
            producer.send(self._job.accounts, leg.encode(), partition=leg.account % self._job.partitions)
            for leg in legs
        ]
        for each in sent:
            each.get(CALL_TIMEOUT_S)

    def _handle(self, producer: Any, consumer: Any, offsets: list[int]) -> None:
        self._transactions += 1
        transaction = f"{self._job.name}.{self._job.number}.{self._transactions}"
        orders = [(TopicPartition(self._job.orders, self._job.number), offset) for offset in offsets]
        try:
            producer.begin_transaction()
            self._write(producer, transfer(transaction, orders))
            is_given_up = self._chance.random() < ABORT_CHANCE
            if not is_given_up:
                ends = {self._place: OffsetAndMetadata(offsets[-1] + 1, "", -1)}
                producer.send_offsets_to_transaction(ends, consumer.group_metadata())
        except KafkaError:
            say("aborted", transaction=transaction, is_asked=False)
            raise
        if is_given_up:
            say("aborted", transaction=transaction, is_asked=False)
            producer.abort_transaction()
            self._rewind(consumer)
        else:
            producer.commit_transaction()
            say("committed", transaction=transaction)


def _quietly(close: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # it is given up, whatever it says
        close()


if __name__ == "__main__":
    main(sys.argv[1:], KafkaPythonTeller)
