"""Streaming reads of topics by a real Spark session: offsets, limits, triggers, what comes and goes while it runs."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException

from flowstone import Broker
from pyspark_flowstone.versions import TELLS_START
from tests.support.spark.queries import start_available

WAIT_S = 120
ADMIN_TIMEOUT_S = 20


@pytest.fixture
def stream(spark, broker):
    """A streaming read of a topic, with more options."""

    def read(topic, **options):
        reader = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        return reader.options(**options).load()

    return read


@pytest.fixture
def run_available(spark, tmp_path):
    """Reads what there is into a table, from the checkpoint of the test, and gives the query."""

    def run(frame, *, name=None, checkpoint="checkpoint"):
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / checkpoint))
        writer = writer.queryName(name) if name else writer
        query = start_available(writer.option("path", str(tmp_path / "out")))
        assert query.awaitTermination(WAIT_S)
        return query

    return run


@pytest.fixture
def written(spark, tmp_path):
    def read():
        frame = spark.read.parquet(str(tmp_path / "out"))
        return sorted((row.partition, row.offset, bytes(row.value).decode()) for row in frame.collect())

    return read


@pytest.fixture
def running(tmp_path):
    """Starts queries that run until the test ends; waits for what they must have done."""
    queries = []

    def start(frame, sink="memory", name="sink", **options):
        query = (
            frame.writeStream.format(sink)
            .queryName(name)
            .options(**options)
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
            .start()
        )
        queries.append(query)
        return query

    yield start
    for query in queries:
        query.stop()


def wait_until(condition, query=None):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert query is None or query.exception() is None, query.exception()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_what_is_there_is_read_once_and_later_only_what_came_since(topic, fill, stream, run_available, written):
    fill(topic, ["a", "b", "c"])
    run_available(stream(topic, startingOffsets="earliest"))
    fill(topic, ["d"], partition=1)
    run_available(stream(topic, startingOffsets="earliest"))
    assert written() == [(0, 0, "a"), (0, 1, "c"), (1, 0, "b"), (1, 1, "d")]


def test_offsets_are_kept_in_the_form_of_the_kafka_connector(topic, fill, stream, run_available, tmp_path):
    fill(topic, ["a", "b", "c"])
    query = run_available(stream(topic, startingOffsets="earliest"))
    source = query.lastProgress["sources"][0]
    assert json.loads(source["endOffset"])[topic] == {"0": 2, "1": 1}
    kept = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert {name: offsets for name, offsets in json.loads(kept).items() if offsets} == {topic: {"0": 2, "1": 1}}


def test_a_topic_that_was_created_again_is_not_read_on_at_the_old_offsets(
    broker, topic, fill, stream, run_available, written
):
    fill(topic, ["a", "b"])
    run_available(stream(topic, startingOffsets="earliest"))
    delete_topic(broker, topic)
    broker.create_topic(topic, partitions=2)
    fill(topic, ["1", "2", "3", "4"])
    with pytest.raises(StreamingQueryException, match=f"flowstone: topic {topic} was deleted and created again"):
        run_available(stream(topic))
    run_available(stream(topic, failOnDataLoss="false"))
    assert sorted(value for _partition, _offset, value in written()) == ["1", "2", "3", "4", "a", "b"]


@pytest.mark.skipif(not TELLS_START, reason="PySpark before 4.2 does not ask a source how far a query could go")
def test_progress_reports_how_far_a_query_could_go(topic, fill, stream, run_available):
    fill(topic, ["x"] * 20)
    query = run_available(stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="6"))
    assert json.loads(query.recentProgress[0]["sources"][0]["latestOffset"]) == {topic: {"0": 10, "1": 10}}


def test_a_query_reads_records_as_they_come(spark, topic, fill, stream, running):
    query = running(stream(topic, startingOffsets="earliest"), name="as_they_come")
    fill(topic, ["first"])
    wait_until(lambda: spark.table("as_they_come").count() == 1, query)
    fill(topic, ["second"])
    wait_until(lambda: spark.table("as_they_come").count() == 2, query)


def test_a_new_query_starts_with_what_comes_after_it(spark, topic, fill, stream, running):
    fill(topic, ["before"])
    query = running(stream(topic), name="from_now_on")
    wait_until(lambda: query.lastProgress is not None, query)
    fill(topic, ["after"])
    wait_until(lambda: spark.table("from_now_on").count() == 1, query)
    assert bytes(spark.table("from_now_on").collect()[0].value) == b"after"


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"startingOffsets": '{"TOPIC":{"0":3,"1":-1}}'}, {(0, 3), (0, 4)}),
        ({"startingTimestamp": "4000"}, {(0, 3), (0, 4), (1, 3), (1, 4)}),
        ({"startingOffsetsByTimestamp": '{"TOPIC":{"0":5000,"1":2000}}'}, {(0, 4), (1, 1), (1, 2), (1, 3), (1, 4)}),
    ],
)
def test_every_form_of_start_is_kept_to_the_offset(topic, fill, stream, run_available, written, options, first):
    for number in range(5):
        fill(topic, ["x", "x"], timestamp=(number + 1) * 1000)
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    run_available(stream(topic, **given))
    assert {(partition, offset) for partition, offset, _ in written()} == first


def test_a_batch_takes_no_more_offsets_than_allowed(topic, fill, stream, run_available, written):
    fill(topic, ["x"] * 50)
    query = run_available(stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="20"))
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [20, 20, 10]
    assert len(written()) == 50


def test_a_batch_takes_about_as_many_bytes_as_allowed(topic, fill, stream, run_available, written):
    for _ in range(20):  # record batches of 10 KB
        fill(topic, ["x" * 1000] * 10, partition=0)
    query = run_available(stream(topic, startingOffsets="earliest", maxBytesPerTrigger="60000"))
    counts = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert sum(counts) == len(written()) == 200
    assert all(40 <= count <= 60 for count in counts[:-1])


def test_a_batch_waits_until_there_are_as_many_offsets_as_it_should_have(spark, topic, fill, stream, running):
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1h"}
    query = running(stream(topic, **options), name="enough")
    fill(topic, ["x"] * 6)
    wait_until(lambda: query.lastProgress is not None, query)
    assert spark.table("enough").count() == 0
    fill(topic, ["x"] * 6)
    wait_until(lambda: spark.table("enough").count() == 12, query)


def test_a_batch_that_waits_for_more_goes_ahead_in_the_end(spark, topic, fill, stream, running):
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1s"}
    query = running(stream(topic, **options), name="in_the_end")
    fill(topic, ["x"] * 6)
    wait_until(lambda: spark.table("in_the_end").count() == 6, query)


@pytest.mark.skipif(not TELLS_START, reason="PySpark before 4.2 has no limits with the trigger availableNow")
def test_records_that_come_while_it_reads_what_is_available_are_left(topic, fill, stream, tmp_path, spark):
    fill(topic, ["x"] * 40)
    seen = []

    def take(frame, batch_id):
        seen.append(frame.count())
        if batch_id == 0:
            fill(topic, ["late"] * 40)

    frame = stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="15")
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "c"))
    assert query.trigger(availableNow=True).start().awaitTermination(WAIT_S)
    assert seen == [15, 15, 10]


def test_partitions_added_while_it_runs_are_read_from_their_start(spark, broker, topic, fill, stream, running):
    fill(topic, ["a"])
    query = running(stream(topic, startingOffsets="earliest"), name="grows")
    wait_until(lambda: spark.table("grows").count() == 1, query)
    add_partitions(broker, topic, 3)
    fill(topic, ["b"], partition=2)
    wait_until(lambda: spark.table("grows").count() == 2, query)


def test_topics_that_fit_a_pattern_are_read_when_they_appear(spark, broker, fill, stream, running):
    query = running(stream(None, subscribePattern="region-.*", startingOffsets="earliest"), name="regions")
    for name in ("region-north", "region-south"):
        broker.create_topic(name, partitions=1)
        fill(name, [name], partition=0)
        wait_until(lambda name=name: name in [row.topic for row in spark.table("regions").collect()], query)


def test_a_deleted_topic_ends_the_query_and_is_named(broker, topic, fill, stream, running):
    fill(topic, ["a"])
    query = running(stream(topic, startingOffsets="earliest"), "noop", "deleted")
    wait_until(lambda: query.lastProgress is not None and query.lastProgress["batchId"] >= 0, query)
    delete_topic(broker, topic)
    with pytest.raises(StreamingQueryException, match=rf"{topic}-\d: it no longer exists, and was read up to offset"):
        query.awaitTermination(WAIT_S)


def test_offsets_that_retention_took_while_it_was_stopped_end_the_query_and_are_named(
    broker, topic, fill, stream, run_available, written
):
    fill(topic, ["x"] * 10)
    run_available(stream(topic, startingOffsets="earliest"))
    fill(topic, ["x"] * 20)
    delete_records(broker, topic, partition=0, before=9)
    with pytest.raises(StreamingQueryException, match=rf"{topic}-0: offsets 5 to 8 are gone, the log starts at 9 now"):
        run_available(stream(topic))
    run_available(stream(topic, failOnDataLoss="false"))
    assert {offset for partition, offset, _ in written() if partition == 0} == {*range(5), *range(9, 15)}
    assert {offset for partition, offset, _ in written() if partition == 1} == set(range(15))


def test_a_topic_made_anew_ends_the_query_or_is_read_from_its_start(
    broker, topic, fill, stream, run_available, written
):
    fill(topic, ["old"] * 10)
    run_available(stream(topic, startingOffsets="earliest"))
    delete_topic(broker, topic)
    broker.create_topic(topic, partitions=2)
    fill(topic, ["new"] * 4)
    with pytest.raises(StreamingQueryException, match=rf"topic {topic} was deleted and created again"):
        run_available(stream(topic))
    run_available(stream(topic, failOnDataLoss="false"))
    assert [value for _, _, value in written()].count("new") == 4


def test_a_broker_that_is_restarted_interrupts_nothing(spark, fill, running):
    with Broker(mode="process") as broker:
        broker.create_topic("steady", partitions=1)
        reader = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
        query = running(reader.options(subscribe="steady", startingOffsets="earliest").load(), name="steady")
        produce(broker, "steady", ["before"])
        wait_until(lambda: spark.table("steady").count() == 1, query)
        broker.kill()
        broker.restart()
        produce(broker, "steady", ["after"])
        wait_until(lambda: spark.table("steady").count() == 2, query)
        query.stop()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: a streaming query has no end"),
        ({"filterPushdown": "true"}, "filterPushdown: Spark pushes filters into batch reads only"),
    ],
)
def test_an_option_without_meaning_for_a_stream_ends_it_before_its_first_batch(
    topic, stream, run_available, options, sentence
):
    with pytest.raises(StreamingQueryException, match=sentence):
        run_available(stream(topic, **options))


def produce(broker, topic, values):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def finish(client, futures):
    """The client must live until what it was asked for is done."""
    assert client is not None
    for done in futures.values():
        done.result(timeout=ADMIN_TIMEOUT_S)


def add_partitions(broker, topic, total):
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    finish(client, client.create_partitions([NewPartitions(topic, total)]))


def delete_topic(broker, topic):
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    finish(client, client.delete_topics([topic], operation_timeout=ADMIN_TIMEOUT_S))


def delete_records(broker, topic, partition, before):
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    finish(client, client.delete_records([TopicPartition(topic, partition, before)]))
