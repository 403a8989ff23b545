"""A broker is killed with -9 under Spark's queries, with our format and the stock one: they go on, and lose nothing.

Both sinks' producers are idempotent and no task is tried again, so here not even at-least-once has duplicates.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TypeVar

from confluent_kafka import KafkaError, Message, Producer
from pyspark.sql import SparkSession

from tests.chaos.cluster import ChaosCluster, Node
from tests.cluster_spark.copying import STOCK, WAIT_TIMEOUT_S, Copying, wait_until

ROWS = 40_000
TASKS = 20
RECORDS_PER_SECOND = 500
FLUSH_TIMEOUT_S = 120
MORE_RECORDS = 1000
PAUSE_S = 0.02

T = TypeVar("T")


class Traffic:
    """Keeps producing records with keys of their own until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: dict[str, str] = {}  # places by key
        self._topic, self._failed = topic, []
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(FLUSH_TIMEOUT_S) == 0
        assert self._failed == []

    def _produce(self) -> None:
        for number in count():
            if self._ended.is_set():
                return
            self._producer.produce(self._topic, b"x", key=f"k{number}", on_delivery=self._told)
            self._producer.poll(0)
            if number % int(RECORDS_PER_SECOND * PAUSE_S) == 0:
                self._ended.wait(PAUSE_S)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged[message.key().decode()] = f"{message.partition()}:{message.offset()}"
        else:
            self._failed.append(str(error))


def test_a_stream_from_topic_to_topic_outlives_a_killed_broker(copying: Copying, cluster: ChaosCluster) -> None:
    traffic = Traffic(cluster.bootstrap, copying.source)
    query = copying.start()

    def has_copied(records: int) -> bool:
        assert query.isActive, query.exception()
        return sum(each.numInputRows for each in query.recentProgress) >= records

    try:
        wait_until(lambda: has_copied(1), "the query has begun")
        victim = copying.leader(copying.source)
        victim.kill()
        wait_until(lambda: led_by_none(victim, cluster), "others lead what the killed broker led")
        wanted = len(traffic.acknowledged) + MORE_RECORDS
        wait_until(lambda: has_copied(wanted), "the query goes on while the broker is dead")
        victim.start()
        assert cluster.wait_in_sync(WAIT_TIMEOUT_S)
        traffic.stop()
        query.processAllAvailable()
        there = copying.records(copying.source)
        if copying.format != STOCK:
            ends = Counter(int(place.partition(":")[0]) for place, _, _ in there)
            wait_until(lambda: copying.committed() == ends, "the group's offsets are at the end")
        assert query.isActive, query.exception()
    finally:
        traffic.stop()
        query.stop()

    assert {key: place for place, key, _ in there} == traffic.acknowledged
    assert Counter((key, value) for _, key, value in copying.records(copying.copy)) == Counter(
        (key, place) for place, key, _ in there
    )


def led_by_none(node: Node, cluster: ChaosCluster) -> bool:
    described = cluster.describe().values()
    return bool(described) and all(each.leader not in (node.node_id, -1) for each in described)


def test_a_batch_written_while_a_broker_is_killed_is_there_once(copying: Copying) -> None:
    rows = copying.spark.range(0, ROWS, 1, TASKS).selectExpr("cast(id as string) key", "cast(id as string) value")
    kill_during(lambda: copying.write(rows, copying.source), copying.spark, copying.leader(copying.source))
    assert sorted(int(key) for _, key, _ in copying.records(copying.source)) == list(range(ROWS))


def test_a_batch_read_while_a_broker_is_killed_is_whole(copying: Copying) -> None:
    rows = copying.spark.range(ROWS).selectExpr("cast(id as string) key", "cast(id as string) value")
    copying.write(rows, copying.source)
    read = copying.read(copying.source, minPartitions=TASKS).selectExpr("cast(cast(key as string) as long) key")
    found = kill_during(read.collect, copying.spark, copying.leader(copying.source))
    assert sorted(row.key for row in found) == list(range(ROWS))


def kill_during(job: Callable[[], T], spark: SparkSession, victim: Node) -> T:
    """What the job returned, during which a broker was killed: some of its tasks were done, and some were not."""
    tracker = spark.sparkContext.statusTracker()

    def is_half_done() -> bool:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return any(stage is not None and 0 < stage.numCompletedTasks < stage.numTasks for stage in stages)

    def kill() -> None:
        wait_until(is_half_done, "some tasks are done and some are not")
        victim.kill()

    # The job stays in this thread: Spark finds Python data sources only where its session is the active one.
    with ThreadPoolExecutor(1) as killer:
        killing = killer.submit(kill)
        result = job()
        killing.result()
    return result
