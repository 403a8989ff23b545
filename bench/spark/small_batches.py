"""Queries with little work: the duration of a small micro-batch, and the cost of an idle query."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Producer
from pyspark.sql.streaming.query import StreamingQuery

from bench.cases import Case
from bench.load import Figures
from bench.spark import session
from bench.spark.systems import System
from bench.spark.usage import spent_s, usage
from bench.topics import RoundFailed, fresh_topic

MICRO_BATCH, IDLE, NOOP = "micro-batch", "idle", "noop sink"
BATCH_MS, CPU_PERCENT = "batch_ms", "cpu_percent_of_a_core"
RECORDS = 10
PARTITIONS = 2
WARM_UP_BATCHES = 5  # the first starts workers
LOOK_S = 1.0
SETTLE_S = 3.0  # time for the JVM's compilation and garbage collection after work
FLUSH_TIMEOUT_S = 30


def micro_batches(systems: Sequence[System], count: int) -> Case:
    """Return the durations that Spark reports for micro-batches of a few records, from planning to commit."""
    variant = f"{RECORDS} records of 100 B"
    rounds = {system.name: _batches(system, count) for system in systems}
    return Case(MICRO_BATCH, NOOP, variant, BATCH_MS, rounds)


def idle(system: System, seconds: float) -> Case:
    """Return the cost of driver, planner and workers for an idle query, and of the session without it."""
    alone_s = _cpu_during(system, seconds)
    with _running(system) as (query, send):
        send()
        query.processAllAvailable()
        query_s = _cpu_during(system, seconds)
    figures = {CPU_PERCENT: 100 * query_s / seconds, "cpu_percent_of_a_core_without_the_query": 100 * alone_s / seconds}
    return Case(IDLE, NOOP, f"one query, {seconds:g} s", CPU_PERCENT, {system.name: [figures]})


def _cpu_during(system: System, seconds: float) -> float:
    """Return the processor time in that period, sampled often, without the Python driver, which only samples.

    The time that a worker used after the last sample before its end is not counted.
    """
    time.sleep(SETTLE_S)
    end = time.monotonic() + seconds
    spent, before = 0.0, usage(session.jvm(system.spark))
    while time.monotonic() < end:
        time.sleep(LOOK_S)
        after = usage(session.jvm(system.spark))
        spent, before = spent + spent_s(before, after), after
    return spent


def _batches(system: System, count: int) -> list[Figures]:
    with _running(system) as (query, send):
        for _ in range(WARM_UP_BATCHES + count):
            send()
            query.processAllAvailable()
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    if sum(progress["numInputRows"] for progress in batches) != RECORDS * (WARM_UP_BATCHES + count):
        raise RoundFailed(f"{system.name} did not read every small batch")
    return [{BATCH_MS: float(progress["durationMs"]["triggerExecution"])} for progress in batches[-count:]]


@contextmanager
def _running(system: System) -> Iterator[tuple[StreamingQuery, Callable[[], None]]]:
    """Run a query on a new topic; yield it with a function that sends it a few records."""
    with fresh_topic(system.server, PARTITIONS) as topic, tempfile.TemporaryDirectory() as checkpoint:
        producer = Producer({"bootstrap.servers": system.server.address, "linger.ms": 0})

        def send() -> None:
            for number in range(RECORDS):
                producer.produce(topic, bytes(100), partition=number % PARTITIONS)
            if producer.flush(FLUSH_TIMEOUT_S):
                raise RoundFailed(f"{system.server.name} did not store {RECORDS} records in {FLUSH_TIMEOUT_S} s")

        stream = system.by_default().stream(topic).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = stream.start()
        try:
            yield query, send
        finally:
            query.stop()
