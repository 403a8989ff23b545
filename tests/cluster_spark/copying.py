"""A format of Spark's at work between two topics of a cluster, and what is in them as another client sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.chaos.cluster import ChaosCluster, Node

STOCK = "kafka"
PARTITIONS = 6
READ_TIMEOUT_S = 60.0
WAIT_TIMEOUT_S = 180.0
POLL_S = 0.02


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Copying:
    spark: SparkSession
    cluster: ChaosCluster
    format: str
    source: str
    copy: str
    directory: Path

    @property
    def group(self) -> str:
        return f"g-{self.source}"

    def leader(self, topic: str) -> Node:
        """The broker that leads the topic's first partition."""
        leaders = [each.leader for partition, each in self.cluster.describe().items() if partition.topic == topic]
        return self.cluster.nodes[leaders[0]]

    # What Spark does

    def start(self) -> StreamingQuery:
        """A query that copies until it is stopped: a row's new value is where it was."""
        reader = self.spark.readStream.format(self.format).option("kafka.bootstrap.servers", self.cluster.bootstrap)
        reader = reader.option("subscribe", self.source).option("startingOffsets", "earliest")
        if self.format != STOCK:  # which commits nothing
            reader = reader.option("groupId", self.group)
        rows = reader.load().selectExpr("key", "concat(partition, ':', offset) value")
        writer = rows.writeStream.format(self.format).option("kafka.bootstrap.servers", self.cluster.bootstrap)
        writer = writer.option("topic", self.copy).option("checkpointLocation", str(self.directory / "checkpoint"))
        return writer.start()

    def write(self, rows: DataFrame, topic: str) -> None:
        writer = rows.write.format(self.format).option("kafka.bootstrap.servers", self.cluster.bootstrap)
        # Spark's own default refuses what exists; both sinks append.
        writer.option("topic", topic).mode("append").save()

    def read(self, topic: str, **options: object) -> DataFrame:
        reader = self.spark.read.format(self.format).option("kafka.bootstrap.servers", self.cluster.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    # What others see of it

    def records(self, topic: str) -> list[tuple[str, str, str]]:
        """Place, key and value of all that is in a topic."""
        settings = {
            "bootstrap.servers": self.cluster.bootstrap,
            "group.id": "looking",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
        consumer, found, ended = Consumer(settings), [], set()
        try:
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
            deadline = time.monotonic() + READ_TIMEOUT_S
            while len(ended) < PARTITIONS:
                assert time.monotonic() < deadline, f"{topic} was not read to its end"
                for message in consumer.consume(10_000, timeout=0.5):
                    error = message.error()
                    if error is None:
                        place = f"{message.partition()}:{message.offset()}"
                        found.append((place, message.key().decode(), message.value().decode()))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
        finally:
            consumer.close()
        return found

    def committed(self) -> dict[int, int]:
        """The group's offset in each partition of the source; below 0 where there is none."""
        asked = ConsumerGroupTopicPartitions(
            self.group, [TopicPartition(self.source, number) for number in range(PARTITIONS)]
        )
        told = self.cluster.admin.list_consumer_group_offsets([asked])[self.group].result(READ_TIMEOUT_S)
        return {each.partition: each.offset for each in told.topic_partitions}
