"""Streaming queries that write topics: output modes, a broker that restarts under them, what fails before anything is
written."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col, expr

from flowstone import Broker
from tests.support.spark.queries import start_available

QUERY_TIMEOUT_S = 60


@pytest.fixture
def read_stream(spark, broker):
    def read(topic, bootstrap=broker.bootstrap, **options):
        reader = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", bootstrap)
        return reader.options(subscribe=topic, startingOffsets="earliest", groupId=f"g-{topic}", **options).load()

    return read


@pytest.fixture
def start(broker, tmp_path):
    """A query that writes rows to a topic; without a trigger of its own it reads what is there and ends."""

    def begin(rows, topic, *, bootstrap=broker.bootstrap, output_mode="append", trigger=None):
        writer = rows.writeStream.format("flowstone").option("kafka.bootstrap.servers", bootstrap)
        writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path / f"checkpoint-{topic}"))
        writer = writer.outputMode(output_mode)
        return writer.trigger(**trigger).start() if trigger else start_available(writer)

    return begin


def finish(query):
    assert query.awaitTermination(QUERY_TIMEOUT_S)


@pytest.fixture
def result(broker):
    name = f"r-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=2)
    return name


def test_a_query_writes_each_row_once_over_several_batches(broker, topic, result, fill, read_stream, start):
    fill(topic, [f"v{number}" for number in range(400)])
    finish(start(read_stream(topic, maxOffsetsPerTrigger=150).select("value"), result))
    assert Counter(each.value for each in broker.records(result)) == Counter(
        f"v{number}".encode() for number in range(400)
    )


@pytest.fixture
def counts(topic, fill, read_stream):
    """How often each value is in a topic, as a stream of rows to write."""
    fill(topic, ["tea", "tea", "cake"])
    counted = read_stream(topic).groupBy(col("value").alias("key")).count()
    return counted.select("key", expr("cast(count as string)").alias("value"))


def test_in_complete_mode_the_whole_result_is_written(broker, result, counts, start):
    finish(start(counts, result, output_mode="complete"))
    assert {(each.key, each.value) for each in broker.records(result)} == {(b"tea", b"2"), (b"cake", b"1")}


def test_in_update_mode_each_batch_is_written_by_the_batch_sink(broker, result, counts, tmp_path):
    """Spark has no update mode for sinks in Python: the way is foreachBatch."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": result}

    def write(rows, _batch_id):
        rows.write.format("flowstone").options(**options).mode("append").save()

    query = counts.writeStream.outputMode("update").foreachBatch(write).trigger(availableNow=True)
    finish(query.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
    assert {(each.key, each.value) for each in broker.records(result)} == {(b"tea", b"2"), (b"cake", b"1")}


def test_partitions_added_while_a_query_runs_are_written(spark, broker, result, start):
    """Each task asks how many there are."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    rows = rows.selectExpr("cast(value as string) key", "'' value")
    query = start(rows, result, trigger={"processingTime": "0 seconds"})
    try:
        broker.wait_for(result, 1, timeout=QUERY_TIMEOUT_S)
        add_partitions(broker, result, 4)
        wait_until_written(broker, result, {0, 1, 2, 3})
    finally:
        query.stop()


def add_partitions(broker, topic, count):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result()


def wait_until_written(broker, topic, partitions):
    seen = 0
    while {each.partition for each in broker.records(topic)} != partitions:
        seen = len(broker.wait_for(topic, seen + 1, timeout=QUERY_TIMEOUT_S))


def test_a_missing_topic_is_created(broker, topic, fill, read_stream, start):
    name = f"new-{uuid.uuid4().hex[:12]}"
    fill(topic, ["a", "b"])
    finish(start(read_stream(topic).select("value"), name))
    assert sorted(each.value for each in broker.records(name)) == [b"a", b"b"]


def test_a_name_that_no_topic_may_have_fails_the_query_before_anything_runs(topic, fill, read_stream, start):
    fill(topic, ["x"])
    rows = read_stream(topic).select(expr("raise_error('it ran')").cast("string").alias("value"))
    query = start(rows, "no name")
    with pytest.raises(StreamingQueryException, match="flowstone: topic no name: that is no topic that can be written"):
        query.awaitTermination(QUERY_TIMEOUT_S)


def test_a_broker_killed_and_started_again_under_a_query_loses_and_repeats_nothing(spark, read_stream, start):
    with Broker(mode="process") as broker:
        broker.create_topic("in", partitions=2)
        broker.create_topic("out", partitions=2)
        rows = spark.range(20_000).selectExpr("cast(id as string) value")
        rows.write.format("flowstone").options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": "in"}).mode(
            "append"
        ).save()
        source = read_stream("in", broker.bootstrap, maxOffsetsPerTrigger=2000)
        query = start(source.select("value"), "out", bootstrap=broker.bootstrap)
        broker.wait_for("out", 1, timeout=QUERY_TIMEOUT_S)
        broker.kill()
        broker.restart()
        finish(query)
        assert query.exception() is None
        assert sorted(int(each.value) for each in broker.records("out")) == list(range(20_000))
