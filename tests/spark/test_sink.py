"""Batch writes of rows to topics by a real Spark session: columns, partitions, codecs, and what is refused."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql.functions import col, expr, lit

from flowstone.client import Cluster
from flowstone.types import TopicPartition

CODEC_MASK = 7
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_POSITION = 22  # the low byte of a batch's attributes


@pytest.fixture
def save(broker):
    """Appends rows, to a topic unless each names its own."""

    def write(frame, topic=None, **options):
        named = {"topic": topic} if topic is not None else {}
        writer = frame.write.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
        writer.options(**named, **options).mode("append").save()

    return write


@pytest.fixture
def refusal(save):
    """The last line of why rows are not written."""

    def refused(frame, topic=None, **options):
        with pytest.raises(PySparkException) as error:
            save(frame, topic, **options)
        return str(error.value)

    return refused


def new_topic(broker, partitions=2):
    name = f"t-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=partitions)
    return name


def test_rows_become_records(spark, broker, topic, save):
    save(spark.range(1000).selectExpr("cast(id as string) key", "concat('v', id) value"), topic)
    records = broker.records(topic)
    assert sorted((each.key, each.value) for each in records) == sorted(
        (str(number).encode(), f"v{number}".encode()) for number in range(1000)
    )


def test_keys_go_to_the_partitions_of_the_java_client(spark, broker, save):
    ours, theirs = new_topic(broker, 7), new_topic(broker, 7)
    save(spark.range(500).selectExpr("concat('key-', id) key", "'' value"), ours)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for number in range(500):
        producer.produce(theirs, b"", f"key-{number}")
    assert producer.flush(30) == 0
    places = [{each.key: each.partition for each in broker.records(topic)} for topic in (ours, theirs)]
    assert places[0] == places[1]


def test_rows_without_a_key_are_spread(spark, broker, save):
    topic = new_topic(broker, 4)
    save(spark.range(100_000).selectExpr("cast(id as string) value").repartition(4), topic)
    counts = [0] * 4
    for record in broker.records(topic):
        counts[record.partition] += 1
    assert sum(counts) == 100_000
    assert min(counts) > 0


def test_a_partition_named_by_a_row_wins_over_its_key(spark, broker, topic, save):
    rows = spark.range(100).selectExpr("'same' key", "cast(id as string) value", "cast(id % 2 as int) partition")
    save(rows, topic)
    assert all(int(each.value) % 2 == each.partition for each in broker.records(topic))


def test_each_row_may_name_its_topic(spark, broker, save):
    topics = [new_topic(broker), new_topic(broker)]
    names = f"array('{topics[0]}', '{topics[1]}')"
    save(spark.range(100).selectExpr("cast(id as string) value", f"element_at({names}, cast(id % 2 + 1 as int)) topic"))
    for index, topic in enumerate(topics):
        assert sorted(int(each.value) for each in broker.records(topic)) == list(range(index, 100, 2))


def test_the_option_topic_wins_over_the_column(spark, broker, topic, save):
    save(spark.range(3).selectExpr("'x' value", "'no-such-topic' topic"), topic)
    assert len(broker.records(topic)) == 3


def test_headers_timestamp_tombstone_and_null_key_are_kept(spark, topic, save, load):
    moment = datetime(2026, 1, 31, 12, 0, 0, 123_000)
    rows = spark.createDataFrame(
        [(None, bytearray(b"v"), moment, [("a", bytearray(b"1")), ("a", None)]), (b"k", None, moment, None)],
        "key binary, value binary, timestamp timestamp, headers array<struct<key: string, value: binary>>",
    )
    save(rows, topic)
    read = load(topic, includeHeaders="true").select("key", "value", "timestamp", "headers").collect()
    found = {row.key and bytes(row.key): row for row in read}
    assert found[None].value == b"v"
    assert [(each.key, each.value) for each in found[None].headers] == [("a", b"1"), ("a", None)]
    assert found[b"k"].value is None
    assert not found[b"k"].headers
    assert {row.timestamp for row in read} == {moment}


def test_rows_without_a_time_have_that_of_the_write(spark, broker, topic, save):
    before_ms = datetime.now(UTC).timestamp() * 1000
    save(spark.range(1).selectExpr("'x' value", "cast(null as timestamp) timestamp"), topic)
    (record,) = broker.records(topic)
    assert before_ms - 1000 < record.timestamp_ms < before_ms + 60_000


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_compressed_as_asked(spark, broker, topic, save, codec):
    rows = spark.range(2000).selectExpr("cast(id as string) key", "repeat('text ', 20) value")
    save(rows, topic, **{"kafka.compression.type": codec})
    assert len(broker.records(topic)) == 2000
    with Cluster(broker.bootstrap) as cluster:
        batches = [each for partition in (0, 1) for each in cluster.fetch(TopicPartition(topic, partition), 0, 1)]
    assert {CODECS[each.records[CODEC_POSITION] & CODEC_MASK] for each in batches} == {codec}


def test_a_record_of_a_megabyte_is_written(spark, broker, topic, save):
    save(spark.range(3).select(expr("repeat('x', 1000000)").alias("value")), topic)
    assert [len(each.value) for each in broker.records(topic)] == [1_000_000] * 3


def test_a_record_that_is_too_large_is_refused_with_its_row(spark, topic, refusal):
    sentence = refusal(spark.range(1).select(expr("repeat('x', 2000000)").alias("value")), topic)
    assert "row 0 cannot be written: it takes 2000074 bytes" in sentence


def test_rows_read_from_a_topic_are_written_as_they_are(spark, broker, topic, fill, load, save):
    fill(topic, [f"v{number}" for number in range(50)], key="k", timestamp=1_700_000_000_000, headers=[("h", b"1")])
    copy = new_topic(broker)
    save(load(topic, includeHeaders="true"), copy)
    columns = ("partition", "key", "value", "timestamp", "headers")
    copied = load(copy, includeHeaders="true").select(*columns).collect()
    original = load(topic, includeHeaders="true").select(*columns).collect()
    assert sorted(copied) == sorted(original)


def test_no_rows_write_nothing(spark, broker, topic, save):
    save(spark.range(0).selectExpr("cast(id as string) value"), topic)
    assert broker.records(topic) == []


def test_a_missing_topic_is_created(spark, broker, save):
    name = f"new-{uuid.uuid4().hex[:12]}"
    save(spark.range(3).selectExpr("cast(id as string) value"), name)
    assert sorted(each.value for each in broker.records(name)) == [b"0", b"1", b"2"]


def test_missing_topics_that_only_rows_name_are_created(spark, broker, save):
    name = f"new-{uuid.uuid4().hex[:12]}"
    save(spark.range(4).selectExpr("cast(id as string) value", f"concat('{name}-', id % 2) topic"))
    assert sorted(each.value for each in broker.records(f"{name}-0")) == [b"0", b"2"]
    assert sorted(each.value for each in broker.records(f"{name}-1")) == [b"1", b"3"]


def test_a_name_that_no_topic_may_have_is_refused_before_anything_runs(spark, refusal):
    never = spark.range(1).select(expr("raise_error('it ran')").cast("string").alias("value"))
    assert "flowstone: topic no/name: that is no topic that can be written to" in refusal(never, "no/name")


def test_a_row_that_names_no_topic_is_refused(spark, refusal):
    assert "topic" in refusal(spark.range(1).selectExpr("'x' value", "cast(null as string) topic"))


def test_a_partition_that_does_not_exist_is_refused(spark, topic, refusal):
    sentence = refusal(spark.range(1).selectExpr("'x' value", "7 partition"), topic)
    assert "partition 7" in sentence


def test_bad_options_and_columns_are_refused_with_one_sentence(spark, topic, refusal):
    rows = spark.range(1).select(lit("x").alias("value"))
    assert "topics: the sink has no such option; did you mean topic?" in refusal(rows, topic, topics="x")
    assert "the column `value` is bigint, and has to be string or binary" in refusal(
        spark.range(1).select(col("id").alias("value")), topic
    )


def test_overwriting_a_topic_is_refused(spark, broker, topic):
    writer = spark.range(1).selectExpr("'x' value").write.format("flowstone")
    with pytest.raises(PySparkException, match="a topic can only be appended to"):
        writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", topic).mode("overwrite").save()
