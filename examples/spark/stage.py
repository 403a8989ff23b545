"""Shared parts of the Spark examples: a session, a broker, generated events in a topic, waiting for a query's end.

An example's `run(spark, bootstrap, directory)` prints its results and returns them, so that a test can check them. All
code about Spark and topics is in the examples themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import flowstone
from examples.patterns.stage import new_topic
from flowstone.cli.records.event_streams import Event, generate
from flowstone.client import LATEST, Cluster
from flowstone.types import TopicPartition

__all__ = ["Event", "Run", "events", "fields", "finish", "lag", "main", "new_topic", "open_session", "send"]

TIMEOUT_S = 120
SPAN_S = 3600
# Generated events fill a whole hour of the past, the last one that was over when the program started.
START_MS = (int(time.time()) - SPAN_S) // SPAN_S * SPAN_S * 1000

Run = Callable[[SparkSession, str, Path], object]


def main(run: Run) -> None:
    """Run an example with the given broker, or with a new one."""
    parser = argparse.ArgumentParser(description="An example of docs/spark-examples.md.")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", default=os.environ.get("FLOWSTONE_BOOTSTRAP"))
    bootstrap: str | None = parser.parse_args().bootstrap
    with ExitStack() as stack:
        if bootstrap is None:
            bootstrap = stack.enter_context(flowstone.Broker()).bootstrap
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        spark = open_session()
        stack.callback(spark.stop)
        run(spark, bootstrap, Path(directory))


def open_session() -> SparkSession:
    """Return a session with two threads on this machine; for a cluster, only the master's address differs."""
    # Spark's workers would be `python3` of the path otherwise.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flowstone examples")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")  # the default, 200, is for larger data
        .config("spark.stage.maxConsecutiveAttempts", "1")  # for delivery=exactly-once
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def events(kind: str, rows: int) -> list[Event]:
    """Return an hour of events as `flowstone generate` writes them: orders, clicks or readings, some of them late."""
    return list(generate(kind, rows, start_ms=START_MS, per_second=rows / SPAN_S))


def fields(event: Event) -> dict[str, Any]:
    return dict(json.loads(event.value))


def send(bootstrap: str, topic: str, sent: Iterable[Event]) -> None:
    """Write the events and return when all are stored. An event without a value is a tombstone."""
    # A key's partition is the one that Spark and the Java client choose.
    config = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "partitioner": "murmur2_random"}
    producer = Producer(config)
    for event in sent:
        producer.produce(topic, event.value or None, event.key, timestamp=event.timestamp_ms)
    if producer.flush(TIMEOUT_S):
        raise TimeoutError(f"not all records of {topic} were stored in {TIMEOUT_S} s")


def finish(query: StreamingQuery) -> None:
    """Wait until a query with the trigger availableNow has ended, and raise its error if it failed."""
    if not query.awaitTermination(TIMEOUT_S):
        query.stop()
        raise TimeoutError(f"the query did not end in {TIMEOUT_S} s: {query.status}")


def lag(bootstrap: str, group_id: str, topic: str) -> int:
    """Return how many records of the topic the group has not processed, according to the broker."""
    with Cluster(bootstrap) as cluster:
        partitions = [TopicPartition(topic, number) for number in range(cluster.topics([topic])[topic])]
        ends = cluster.list_offsets(dict.fromkeys(partitions, LATEST))
        done = cluster.committed(group_id, partitions)
    return sum(ends[each].offset - done.get(each, 0) for each in partitions)
