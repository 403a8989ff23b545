"""Every query is a consumer group: what is committed when, and what the planner knows of the query."""

from __future__ import annotations

import json
import os
import time

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tests.support.spark.queries import start_available

WAIT_S = 120


@pytest.fixture
def stream(spark, broker, topic):
    def read(**options):
        reader = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
        return reader.options(subscribe=topic, startingOffsets="earliest", **options).load()

    return read


@pytest.fixture
def committed(broker, topic):
    """The offsets of a group, by partition; -1001 where there is none."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap})

    def look(group):
        asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0), TopicPartition(topic, 1)])]
        return [each.offset for each in client.list_consumer_group_offsets(asked)[group].result(20).topic_partitions]

    return look


def test_a_query_that_ends_has_committed_its_last_batch(topic, fill, stream, committed, tmp_path):
    fill(topic, ["x"] * 30)
    writer = stream(groupId="ends", maxOffsetsPerTrigger="20").writeStream.format("noop")
    query = start_available(writer.option("checkpointLocation", str(tmp_path)))
    assert query.awaitTermination(WAIT_S)
    assert committed("ends") == [15, 15]


def test_an_idle_query_has_committed_everything_it_has_read(topic, fill, stream, committed, tmp_path):
    fill(topic, ["x"] * 10)
    writer = stream(groupId="idle").writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.start()
    try:
        deadline = time.monotonic() + WAIT_S
        while committed("idle") != [5, 5]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        query.stop()


def test_a_batch_is_not_committed_before_it_is_finished(topic, fill, stream, committed, tmp_path):
    fill(topic, ["x"] * 30)
    during = []

    def take(frame, batch_id):
        frame.count()
        during.append(committed("careful"))

    frame = stream(groupId="careful", maxOffsetsPerTrigger="10")
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    assert start_available(writer).awaitTermination(WAIT_S)
    assert during == [[0, 0], [5, 5], [10, 10]]


class Confession(DataSourceStreamReader):
    """Writes down whatever the planner's process could know its query by."""

    def __init__(self, path):
        self._path = path

    def initialOffset(self):  # noqa: N802 - Spark's name
        with open(self._path, "w") as file:
            task = TaskContext.get()
            properties = {} if task is None else dict(task._localProperties)
            told = {"environment": dict(os.environ), "properties": properties}
            json.dump(told | {"session": str(SparkSession.getActiveSession())}, file)
        return {"at": 0}

    def latestOffset(self, *_start_and_limit):  # noqa: N802 - Spark's name
        return {"at": 1}

    def partitions(self, start, end):
        return [InputPartition(0)]

    def read(self, partition):
        yield (1,)


class ConfessingSource(DataSource):
    @classmethod
    def name(cls):
        return "confessing"

    def schema(self):
        return "n int"

    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return Confession(self.options["path"])


def test_a_planner_is_told_neither_the_name_nor_the_id_of_its_query(spark, tmp_path):
    """Were this to fail with a newer Spark, a query without groupId could have a group of its own name."""
    spark.dataSource.register(ConfessingSource)
    told = tmp_path / "told"
    frame = spark.readStream.format("confessing").option("path", str(told)).load()
    writer = frame.writeStream.format("noop").queryName("secret-name").trigger(once=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(WAIT_S)
    assert '"session": "None"' in told.read_text()
    for known in ("secret-name", query.id, query.runId, str(tmp_path / "checkpoint")):
        assert known not in told.read_text()
