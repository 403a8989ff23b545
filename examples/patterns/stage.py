"""Shared parts of the examples: a broker, a topic with records, and a worker in a process that can be killed.

An example's `run(bootstrap)` prints its results and returns them, so that a test can check them. All code about
messaging is in the examples themselves.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

import flowstone

TIMEOUT_S = 20

# Only to make an example quick: a member learns of a rebalance with its next heartbeat, every three seconds by default.
QUICK = {"heartbeat.interval.ms": 100, "fetch.wait.max.ms": 50}


def main(run: Callable[[str], object]) -> None:
    """Run an example with the given broker, or with a new one."""
    parser = argparse.ArgumentParser(description="An example of the documentation in docs/.")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", default=os.environ.get("FLOWSTONE_BOOTSTRAP"))
    bootstrap: str | None = parser.parse_args().bootstrap
    if bootstrap is not None:
        run(bootstrap)
        return
    with flowstone.Broker() as broker:
        run(broker.bootstrap)


def new_topic(bootstrap: str, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
    """Create a topic with an unused name, so that an example can run again with the same broker."""
    topic = f"{name}-{uuid.uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})  # warnings, and no word when it ends
    admin.create_topics([NewTopic(topic, partitions, config=dict(configs or {}))])[topic].result(TIMEOUT_S)
    return topic


def send(bootstrap: str, topic: str, values: Iterable[object], *, partitions: int = 1) -> None:
    """Write one record for each value, spread over the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(topic, str(value), partition=number % partitions)
    if producer.flush(TIMEOUT_S):
        raise TimeoutError(f"not all records of {topic} were stored in {TIMEOUT_S} s")


def take(consumer: Consumer, count: int = 1, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """Return records from `consumer.consume`; raise the errors that it returns as messages.

    Returns at most `count` records, fewer if no more arrive in time. Raises KafkaException. The type is Any because the
    library's type for a message allows each field to be missing, which it never is in a record.
    """
    messages = consumer.consume(count, timeout_s)
    for message in messages:
        error = message.error()
        if error is not None:
            raise KafkaException(error)
    return messages


def start_group(bootstrap: str, group_id: str, topic: str, *, partitions: int) -> None:
    """Commit offset 0 of every partition for a group without members, so that no member looks up its start.

    This is for groups whose members join one after the other. librdkafka (seen in 2.16.0) does not cancel such a lookup
    (ListOffsets) when the partition is revoked from its member: half a second later the member fetches records of a
    partition that it does not own. If the partition is assigned to it again, it may return the first of those records,
    although another member has processed it.
    """
    offsets = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
    request = ConsumerGroupTopicPartitions(group_id, offsets)
    admin.alter_consumer_group_offsets([request])[group_id].result(TIMEOUT_S)


def committed_offset(bootstrap: str, group_id: str, topic: str) -> int:
    """Return the group's committed offset in partition 0."""
    with Consumer({"bootstrap.servers": bootstrap, "group.id": group_id}) as consumer:
        (partition,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    return int(partition.offset)


class Worker:
    """A worker's process, as its supervisor sees it: what it reports, and how to end it."""

    def __init__(self, process: multiprocessing.process.BaseProcess, told: Connection) -> None:
        self._process, self._told = process, told
        self.told: list[Any] = []

    def wait_for(self, word: object) -> None:
        """Wait until the worker has reported the word. Raises EOFError if it ends before."""
        while word not in self.told:
            if not self._told.poll(TIMEOUT_S):
                raise TimeoutError(f"the worker told {self.told}, and not {word}")
            self.told.append(self._told.recv())

    def kill(self) -> list[Any]:
        """Kill the worker with SIGKILL; return everything that it has reported."""
        self._process.kill()
        self._process.join()
        with suppress(EOFError):
            while True:
                self.told.append(self._told.recv())
        return self.told


@contextmanager
def worker(target: Callable[..., None], *arguments: object) -> Iterator[Worker]:
    """Run `target(*arguments, tell)` in a separate process, which is ended at the end of the block."""
    context = multiprocessing.get_context("spawn")  # a fork would take half of a client library's threads along
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*arguments, sending.send), daemon=True)
    process.start()
    sending.close()  # the worker has the only one now: when it is gone, the pipe ends
    with receiving:
        running = Worker(process, receiving)
        try:
            yield running
        finally:
            running.kill()
