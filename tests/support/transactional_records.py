"""A topic with committed, aborted and open transactions, written by stock producers; and what committed readers see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from flowstone.client import LATEST, Cluster
from flowstone.types import TopicPartition as Place

TIMEOUT_S = 30
COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"


class TransactionalWriter:
    """Writes transactions to one partition, each by a producer of its own."""

    def __init__(self, bootstrap: str, topic: str, partition: int = 0) -> None:
        self._bootstrap, self._topic, self._partition = bootstrap, topic, partition
        self._count = 0

    def write(self, outcome: str, *batches: int) -> Producer:
        """Write batches of as many records as given, and end the transaction; return its producer.

        Each record's value is the outcome and a number. An open transaction is ended by the caller.
        """
        self._count += 1
        config = {"transactional.id": f"{self._topic}-{self._partition}-{self._count}", "linger.ms": 50, "log_level": 0}
        producer = Producer({"bootstrap.servers": self._bootstrap, **config})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for size in batches:
            for number in range(size):
                producer.produce(self._topic, f"{outcome} {self._count} {number}", partition=self._partition)
            assert producer.flush(TIMEOUT_S) == 0
        if outcome != OPEN:
            self.end(producer, outcome)
        return producer

    def end(self, producer: Producer, outcome: str) -> None:
        """Commit or abort, and wait until the transaction's end marker is in the partition.

        The coordinator answers when the decision is stored, and the markers follow.
        """
        marked = self._end_offset() + 1
        if outcome == COMMITTED:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
        deadline_s = time.monotonic() + TIMEOUT_S
        while self._end_offset() < marked:
            assert time.monotonic() < deadline_s, "the end marker was never written"

    def _end_offset(self) -> int:
        place = Place(self._topic, self._partition)
        with Cluster(self._bootstrap) as cluster:
            return cluster.list_offsets({place: LATEST})[place].offset

    def write_plain(self, *values: str) -> None:
        """Write records outside of any transaction."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "log_level": 0})
        for value in values:
            producer.produce(self._topic, value, partition=self._partition)
        assert producer.flush(TIMEOUT_S) == 0


def seen_by_stock_client(bootstrap: str, topic: str, partition: int = 0) -> list[tuple[int, str]]:
    """Return offset and value of every record that librdkafka returns with read_committed."""
    config = {"isolation.level": "read_committed", "enable.partition.eof": True, "group.id": "stock", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, **config})
    with closing(consumer):
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        return list(_until_end(consumer.poll))


def _until_end(poll: Callable[[float], Any]) -> Iterator[tuple[int, str]]:
    while True:
        message = poll(TIMEOUT_S)
        assert message is not None, "neither a record nor the end of the partition"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return
        yield message.offset(), message.value().decode()
