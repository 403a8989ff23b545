"""Aggregations in update mode, written to topics by `pyspark_flowstone.to_topic` in `foreachBatch`."""

from __future__ import annotations

import os
import shutil
import uuid
from collections import Counter

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from pyspark_flowstone import to_topic

QUERY_TIMEOUT_S = 120


@pytest.fixture
def result(broker):
    name = f"u-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=3)
    return name


@pytest.fixture
def counts(spark, broker, topic):
    """The number of records with each value, as rows for the sink."""
    rows = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
    rows = rows.options(subscribe=topic, startingOffsets="earliest").load()
    return rows.groupBy("value").count().selectExpr("value key", "cast(count as string) value")


@pytest.fixture
def run(tmp_path):
    def run(counts, write):
        writer = counts.writeStream.outputMode("update").foreachBatch(write)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    return run


@pytest.fixture
def written(load):
    def read(topic):
        frame = load(topic, **{"isolation.level": "read_committed"})
        return Counter((bytes(row.key).decode(), bytes(row.value).decode()) for row in frame.collect())

    return read


@pytest.fixture
def exactly(broker, result):
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": result,
        "delivery": "exactly-once",
        "sinkName": result,
    }


def test_only_groups_that_changed_are_written(broker, topic, fill, result, counts, run, written):
    write = to_topic({"kafka.bootstrap.servers": broker.bootstrap, "topic": result})
    fill(topic, ["a", "b", "a"])
    run(counts, write)
    fill(topic, ["a"])
    run(counts, write)
    assert written(result) == {("a", "2"): 1, ("b", "1"): 1, ("a", "3"): 1}


def test_a_micro_batch_that_is_run_again_is_written_once(topic, fill, result, counts, run, written, exactly, tmp_path):
    fill(topic, ["a", "b", "a"])
    run(counts, to_topic(exactly))
    (commit,) = [name for name in os.listdir(tmp_path / "checkpoint/commits") if name.isdecimal()]
    os.remove(tmp_path / "checkpoint/commits" / commit)  # as if the driver had died before it wrote this
    (tmp_path / f"checkpoint/commits/.{commit}.crc").unlink(missing_ok=True)
    fill(topic, ["a"])
    run(counts, to_topic(exactly))
    assert written(result) == {("a", "2"): 1, ("b", "1"): 1, ("a", "3"): 1}


def test_a_micro_batch_that_fails_leaves_nothing(topic, fill, result, counts, run, written, exactly):
    fill(topic, ["a", "b"])
    broken = counts.selectExpr("key", "if(key = cast('b' as binary), raise_error('broken'), value) value")
    with pytest.raises(StreamingQueryException, match="broken"):
        run(broken, to_topic(exactly))
    assert written(result) == {}
    run(counts, to_topic(exactly))
    assert written(result) == {("a", "1"): 1, ("b", "1"): 1}


def test_a_query_with_a_new_checkpoint_writes_again(topic, fill, result, counts, run, written, exactly, tmp_path):
    fill(topic, ["a"])
    run(counts, to_topic(exactly))
    shutil.rmtree(tmp_path / "checkpoint")
    run(counts, to_topic(exactly))
    assert written(result) == {("a", "1"): 2}


def test_rows_name_their_topics(broker, topic, fill, result, counts, run, written, exactly):
    other = f"{result}-other"
    broker.create_topic(other)
    fill(topic, ["a", "b"])
    named = counts.selectExpr("*", f"if(key = cast('a' as binary), '{result}', '{other}') topic")
    options = {name: value for name, value in exactly.items() if name != "topic"}
    run(named, to_topic(options, topics=[result, other]))
    assert (written(result), written(other)) == ({("a", "1"): 1}, {("b", "1"): 1})


def test_errors_are_those_of_the_sink(broker, topic, fill, result, counts, run, exactly):
    fill(topic, ["a"])
    with pytest.raises(StreamingQueryException, match="flowstone: the rows need a column `value` to write"):
        run(counts.select("key"), to_topic({"kafka.bootstrap.servers": broker.bootstrap, "topic": result}))
    with pytest.raises(StreamingQueryException, match="flowstone: the rows need a column `value` to write"):
        run(counts.select("key"), to_topic(exactly))


def test_the_sink_itself_has_no_update_mode(broker, result, topic, fill, counts, tmp_path):
    """Spark refuses it before it asks the sink: if this changes, the sink can name `to_topic` itself, or support it."""
    fill(topic, ["a"])
    writer = counts.writeStream.format("flowstone").outputMode("update").option("topic", result)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
    writer = writer.option("checkpointLocation", str(tmp_path / "sink"))
    with pytest.raises(PySparkException, match="flowstone does not support Update mode"):
        writer.trigger(availableNow=True).start().awaitTermination(QUERY_TIMEOUT_S)
