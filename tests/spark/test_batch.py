"""Batch reads of topics by a real Spark session: columns, every form of start and end, what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.functions import col, expr

KAFKA_CONNECTORS_COLUMNS = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
]


def values(frame):
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def offsets(frame):
    return {(row.partition, row.offset) for row in frame.select("partition", "offset").collect()}


def test_a_topic_is_read_from_the_first_to_the_last_record(topic, fill, load):
    fill(topic, [f"v{number}" for number in range(100)])
    assert values(load(topic)) == sorted(f"v{number}" for number in range(100))


def test_the_columns_are_those_of_the_kafka_connector(topic, load):
    assert load(topic).dtypes == KAFKA_CONNECTORS_COLUMNS
    assert load(topic, includeHeaders="true").dtypes == [
        *KAFKA_CONNECTORS_COLUMNS,
        ("headers", "array<struct<key:string,value:binary>>"),
    ]


def test_every_column_of_a_record_is_there(topic, fill, load):
    headers = [("trace", b"1"), ("trace", None)]
    fill(topic, ["tea"], partition=1, key="k", timestamp=1_700_000_000_123, headers=headers)
    assert load(topic, includeHeaders="true").collect() == [
        Row(
            key=bytearray(b"k"),
            value=bytearray(b"tea"),
            topic=topic,
            partition=1,
            offset=0,
            timestamp=datetime.fromtimestamp(1_700_000_000.123, UTC).replace(tzinfo=None),
            timestampType=0,
            headers=[Row(key="trace", value=bytearray(b"1")), Row(key="trace", value=None)],
        )
    ]


def test_null_keys_tombstones_and_empty_values_are_told_apart(topic, fill, load):
    fill(topic, [None, b"", b"x"], partition=0)
    found = [(row.key, row.value) for row in load(topic).orderBy("offset").collect()]
    assert found == [(None, None), (None, bytearray()), (None, bytearray(b"x"))]


def test_only_the_columns_asked_for_come_and_in_that_order(topic, fill, load):
    fill(topic, ["a"], partition=0)
    assert load(topic, columns="offset,value").collect() == [Row(offset=0, value=bytearray(b"a"))]


def test_rows_can_be_counted_without_a_column_being_used(topic, fill, load):
    fill(topic, ["a"] * 50)
    assert load(topic).count() == 50


def test_an_empty_topic_has_no_rows(topic, load):
    assert load(topic).collect() == []


def test_a_record_of_one_megabyte_is_read_whole(broker, fill, load):
    broker.create_topic("large", partitions=1, configs={"max.message.bytes": "2000000"})
    fill("large", [b"x" * 999_000], partition=0)
    assert load("large").select(expr("length(value)")).collect()[0][0] == 999_000


def test_several_topics_are_read_together(broker, fill, load):
    for name in ("pair-a", "pair-b"):
        broker.create_topic(name, partitions=1)
        fill(name, [name], partition=0)
    assert values(load("pair-a,pair-b")) == ["pair-a", "pair-b"]


def test_topics_are_found_by_a_pattern_that_fits_the_whole_name(spark, broker, fill):
    for name in ("shop-orders", "shop-clicks", "old-shop-orders"):
        broker.create_topic(name, partitions=1)
        fill(name, [name], partition=0)
    reader = spark.read.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
    assert values(reader.option("subscribePattern", "shop-.*").load()) == ["shop-clicks", "shop-orders"]


def test_single_partitions_are_read_where_they_are_assigned(spark, broker, topic, fill):
    fill(topic, ["zero", "one"])
    reader = spark.read.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
    assert values(reader.option("assign", json.dumps({topic: [1]})).load()) == ["one"]


@pytest.fixture
def filled(topic, fill):
    """Ten records in each of two partitions; number n has the timestamp (n + 1) * 1000."""
    for number in range(10):
        fill(topic, ["x", "x"], timestamp=(number + 1) * 1000)
    return topic


def everything(first, end, other_first=None, other_end=None):
    other_first, other_end = first if other_first is None else other_first, end if other_end is None else other_end
    return {(0, offset) for offset in range(first, end)} | {(1, offset) for offset in range(other_first, other_end)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, everything(0, 10)),
        ({"startingOffsets": '{"TOPIC":{"0":3,"1":-2}}'}, everything(3, 10, 0, 10)),
        ({"endingOffsets": '{"TOPIC":{"0":3,"1":-1}}'}, everything(0, 3, 0, 10)),
        ({"startingOffsets": '{"TOPIC":{"0":3,"1":4}}', "endingOffsets": '{"TOPIC":{"0":5,"1":4}}'}, {(0, 3), (0, 4)}),
        ({"startingTimestamp": "4000"}, everything(3, 10)),
        ({"startingTimestamp": "3001", "endingTimestamp": "6000"}, everything(3, 5)),
        ({"startingOffsetsByTimestamp": '{"TOPIC":{"0":9000,"1":10000}}'}, everything(8, 10, 9, 10)),
        ({"endingOffsetsByTimestamp": '{"TOPIC":{"0":1000,"1":3000}}'}, everything(0, 0, 0, 2)),
        ({"endingTimestamp": "99000"}, everything(0, 10)),
        ({"startingTimestamp": "99000", "startingOffsetsByTimestampStrategy": "latest"}, set()),
    ],
)
def test_every_form_of_start_and_end_is_kept_to_the_offset(filled, load, options, expected):
    given = {name: value.replace("TOPIC", filled) for name, value in options.items()}
    assert offsets(load(filled, **given)) == expected


def test_a_long_range_is_split_over_several_tasks(topic, fill, load):
    fill(topic, ["x"] * 1000, partition=0)
    frame = load(topic, minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert offsets(frame) == {(0, offset) for offset in range(1000)}


def test_reading_pinned_offsets_again_gives_the_same_rows_in_the_same_order(topic, fill, load):
    fill(topic, [f"v{number}" for number in range(200)])
    pinned = {"endingOffsets": json.dumps({topic: {"0": 90, "1": 70}}), "minPartitions": "5"}
    first = load(topic, **pinned).collect()
    fill(topic, ["later"] * 20)
    assert load(topic, **pinned).collect() == first


def test_a_query_that_needs_few_rows_may_stop_reading(topic, fill, load):
    fill(topic, ["x" * 1000] * 5000)
    assert len(load(topic).limit(3).collect()) == 3
    assert load(topic).count() == 5000


def test_records_written_with_every_codec_are_read(spark, broker, topic, load):
    from confluent_kafka import Producer

    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
        for number in range(50):
            producer.produce(topic, f"{codec} {number} " + "x" * 200, partition=0)
        assert producer.flush(10) == 0
    found = load(topic).select(expr("split(cast(value as string), ' ')[0]").alias("codec")).groupBy("codec").count()
    assert {row.codec: row["count"] for row in found.collect()} == dict.fromkeys(
        ("none", "gzip", "snappy", "lz4", "zstd"), 50
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOfsets": "earliest"}, "startingofsets: the source has no such option; did you mean startingOffsets"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is none of true, false"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "kafka.security.protocol: sasl.mechanism needs one of SSL"),
    ],
)
def test_a_bad_option_fails_at_load_with_a_sentence_that_names_it(topic, load, options, sentence):
    with pytest.raises(PySparkException, match=sentence):
        load(topic, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: a batch read cannot start at latest"),
        ({"startingOffsets": '{"TOPIC":{"0":3}}'}, "startingOffsets: it says nothing of TOPIC-1; name every"),
        ({"startingOffsets": '{"TOPIC":{"0":3,"1":0,"2":0}}'}, "startingOffsets: TOPIC-2 is not subscribed to"),
        ({"startingTimestamp": "99000"}, "startingTimestamp: TOPIC-0, TOPIC-1 has no record as late as that"),
        ({"startingOffsets": '{"TOPIC":{"0":7,"1":0}}', "endingOffsets": '{"TOPIC":{"0":5,"1":0}}'}, "after its end"),
    ],
)
def test_what_only_a_broker_can_tell_is_refused_before_a_task_runs(filled, load, options, sentence):
    given = {name: value.replace("TOPIC", filled) for name, value in options.items()}
    with pytest.raises(PySparkException, match=sentence.replace("TOPIC", filled)):
        load(filled, **given).collect()


def test_a_topic_that_does_not_exist_is_named(load):
    with pytest.raises(PySparkException, match="subscribe: there is no topic nowhere at"):
        load("nowhere").collect()


def test_a_schema_cannot_be_given(spark, broker, topic):
    reader = spark.read.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(PySparkException, match="schema: the source's columns are key, value, topic"):
        reader.option("subscribe", topic).schema("value string").load().collect()


def test_offsets_that_retention_took_fail_the_read_and_are_named(broker, topic, fill, load):
    fill(topic, ["x"] * 20)
    delete_records(broker, topic, partition=1, before=4)
    pinned = json.dumps({topic: {"0": 0, "1": 1}})
    with pytest.raises(PySparkException, match=f"{topic}-1: offsets 1 to 3 are gone, the log starts at 4 now"):
        load(topic, startingOffsets=pinned).collect()
    assert offsets(load(topic, startingOffsets=pinned, failOnDataLoss="false")) == everything(0, 10, 4, 10)


def test_offsets_beyond_the_end_of_the_log_fail_the_read_and_are_named(topic, fill, load):
    fill(topic, ["x"] * 20)
    pinned = json.dumps({topic: {"0": 10, "1": 30}})
    with pytest.raises(PySparkException, match=f"{topic}-1: offsets up to 29 were expected and the log ends at 10"):
        load(topic, endingOffsets=pinned).collect()
    assert load(topic, endingOffsets=pinned, failOnDataLoss="false").count() == 20


def delete_records(broker, topic, partition, before):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        assert done.result(timeout=10).low_watermark == before


def test_a_time_filter_gives_the_same_rows_whether_or_not_it_is_pushed_down(spark, filled, load):
    condition = (col("timestamp") >= expr("timestamp_millis(4000)")) & (
        col("timestamp") < expr("timestamp_millis(7000)")
    )
    expected = offsets(load(filled).where(condition))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert offsets(load(filled, filterPushdown="true").where(condition)) == expected == everything(3, 6)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
