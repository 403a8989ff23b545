"""Failover: measures how long producers wait for acknowledgements after a broker is killed.

The producer is confluent-kafka in a separate process; its settings and the brokers' timeouts are the defaults.
`longest_gap` sends at a constant rate to partitions led by each broker; the result is the longest time without an
acknowledgement for one of them. `many_partitions` sends one record to each of a thousand partitions after the broker
was killed. Every record must finally be acknowledged, or the round fails.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

from bench.cluster_load import VALUE_BYTES, create, spread
from bench.cluster_servers import BROKERS, Cluster
from bench.load import Figures
from bench.topics import BROKER_TROUBLE, RoundFailed

RECORDS_PER_S = 1_500
BEFORE_SECONDS, AFTER_SECONDS = 2.0, 1.0
RECOVERY_TIMEOUT_SECONDS = 60
MANY_PARTITIONS = 1_000
POLL_SECONDS = 0.005

# Sends True when running, receives the time of the kill, and sends seconds or a description of the failure.
Watcher = Callable[["Pipe[Any, Any]"], None]


def longest_gap(cluster: Cluster, victim: int) -> Figures:
    gap = _kill(cluster, victim, "gap", BROKERS, _watch_gap)
    return {"longest_gap_s": gap}


def many_partitions(cluster: Cluster, victim: int) -> Figures:
    seconds = _kill(cluster, victim, "many", MANY_PARTITIONS, _watch_all)
    return {"all_acknowledged_s": seconds}


def _kill(cluster: Cluster, victim: int, topic: str, partitions: int, watch: Callable[..., None]) -> float:
    """Kill a broker while `watch` measures a new topic's partitions; return its result."""
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        try:
            create(cluster, topic, spread(partitions))
        except BROKER_TROUBLE as error:
            raise RoundFailed(f"{type(error).__name__}: {error}") from error
        ours, theirs = context.Pipe()
        work = partial(_tell, partial(watch, cluster.address, topic, partitions), theirs)
        process = context.Process(target=work, daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(process.kill)
        theirs.close()
        _receive(ours)
        cluster.kill(victim)
        ours.send(time.monotonic())
        return float(_receive(ours))


def _receive(pipe: Pipe[Any, Any]) -> Any:
    try:
        if not pipe.poll(2 * RECOVERY_TIMEOUT_SECONDS):
            raise RoundFailed("the producer does not answer")
        answer = pipe.recv()
    except EOFError:
        raise RoundFailed("the producer's process died") from None
    if isinstance(answer, str):
        raise RoundFailed(answer)
    return answer


def _tell(watch: Watcher, pipe: Pipe[Any, Any]) -> None:
    try:
        watch(pipe)
    except Exception as error:  # report any error to the parent process
        pipe.send(f"{type(error).__name__}: {error}")


class _Producer:
    """A producer that sends to given partitions and stores when each was last acknowledged."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Producer

        silent = 0  # a missing broker is expected here
        self._producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": silent})
        self._topic, self._value = topic, bytes(VALUE_BYTES)
        self.acknowledged_at = [time.monotonic()] * partitions
        self.longest_gap_s = 0.0
        self.unacknowledged = 0

    def send(self, partition: int) -> None:
        self.unacknowledged += 1
        self._producer.produce(self._topic, self._value, partition=partition, on_delivery=self._delivered)

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def settle(self, until_s: float) -> None:
        """Wait until all records are acknowledged."""
        while self.unacknowledged:
            self.poll(POLL_SECONDS)
            if time.monotonic() > until_s:
                raise RoundFailed(f"{self.unacknowledged} records were not acknowledged in time")

    def _delivered(self, error: object, record: Any) -> None:
        if error is not None:
            raise RoundFailed(f"a record was refused: {error}")
        self.unacknowledged -= 1
        now, partition = time.monotonic(), record.partition()
        self.longest_gap_s = max(self.longest_gap_s, now - self.acknowledged_at[partition])
        self.acknowledged_at[partition] = now


def _watch_gap(address: str, topic: str, partitions: int, pipe: Pipe[Any, Any]) -> None:
    producer = _warm_producer(address, topic, partitions)
    started = time.monotonic()
    sent, killed_at, ends_at = 0, None, started + RECOVERY_TIMEOUT_SECONDS
    is_told = False
    while (now := time.monotonic()) < ends_at:
        while sent < (now - started) * RECORDS_PER_S:
            producer.send(sent % partitions)
            sent += 1
        producer.poll(POLL_SECONDS)
        if not is_told and now > started + BEFORE_SECONDS:
            is_told = True
            pipe.send(True)
        if killed_at is None and pipe.poll():
            killed_at = pipe.recv()
        if killed_at is not None and min(producer.acknowledged_at) > killed_at + AFTER_SECONDS:
            ends_at = min(ends_at, now + AFTER_SECONDS)
    producer.settle(time.monotonic() + RECOVERY_TIMEOUT_SECONDS)
    pipe.send(producer.longest_gap_s)


def _watch_all(address: str, topic: str, partitions: int, pipe: Pipe[Any, Any]) -> None:
    producer = _warm_producer(address, topic, partitions)
    pipe.send(True)
    killed_at = pipe.recv()
    for partition in range(partitions):
        producer.send(partition)
    producer.settle(killed_at + RECOVERY_TIMEOUT_SECONDS)
    pipe.send(max(producer.acknowledged_at) - killed_at)


def _warm_producer(address: str, topic: str, partitions: int) -> _Producer:
    """Return a producer that knows all leaders, because each has acknowledged a record."""
    producer = _Producer(address, topic, partitions)
    for partition in range(partitions):
        producer.send(partition)
    producer.settle(time.monotonic() + RECOVERY_TIMEOUT_SECONDS)
    producer.longest_gap_s = 0.0
    return producer
