"""The sink with delivery=exactly-once: transactions of micro-batches and of batch queries, and what it refuses."""

from __future__ import annotations

import os
import re
import uuid
from collections import Counter
from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.functions import col, expr

from flowstone.client import Cluster
from flowstone.errors import FlowstoneError
from pyspark_flowstone import exactly_once
from pyspark_flowstone.foreach_batch import direct
from pyspark_flowstone.placement import Part, check_settings, placed
from pyspark_flowstone.reporting import HIDE_TRACEBACK, QueryError
from pyspark_flowstone.values import OptionError
from tests.support.spark.queries import start_available

QUERY_TIMEOUT_S = 120


@pytest.fixture
def result(broker):
    name = f"r-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=3)
    return name


@pytest.fixture
def options(broker, result):
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": result,
        "delivery": "exactly-once",
        "sinkName": result,
    }


@pytest.fixture
def committed(load):
    """How often each value is visible to a read_committed reader."""

    def count(topic):
        frame = load(topic, **{"isolation.level": "read_committed"}).selectExpr("cast(value as string) value")
        return Counter(row.value for row in frame.collect())

    return count


@pytest.fixture(params=["the sink", "the driver"])
def save(request, broker, options, result):
    """Write rows with the sink of a batch query, or from the driver's process as pipelines do."""

    def save(rows):
        placed = exactly_once(rows, bootstrap=broker.bootstrap, topic=result)
        if request.param == "the driver":
            direct.write(placed, options)
            return
        placed.write.format("flowstone").options(**options).mode("append").save()

    return save


@pytest.fixture
def start(spark, broker, options, result, tmp_path):
    """A query that copies a topic to the result; it reads what is there and ends."""

    def begin(source, *, place=exactly_once, per_batch=40, checkpoint="checkpoint"):
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": source, "startingOffsets": "earliest"}
        rows = spark.readStream.format("flowstone").options(**given, maxOffsetsPerTrigger=per_batch).load()
        rows = place(rows.select("key", "value"), bootstrap=broker.bootstrap, topic=result)
        writer = rows.writeStream.format("flowstone").options(**options)
        return start_available(writer.option("checkpointLocation", str(tmp_path / checkpoint)))

    return begin


def finish(query):
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    assert query.exception() is None


def finish_with_error(query):
    query.awaitTermination(QUERY_TIMEOUT_S)


def numbers(count):
    return Counter(str(number) for number in range(count))


def keyed(spark, count):
    return spark.range(count).selectExpr("cast(id % 17 as string) key", "cast(id as string) value")


def test_a_batch_query_is_visible_as_a_whole_and_rows_are_where_their_keys_belong(
    spark, broker, result, save, committed
):
    save(keyed(spark, 500))
    assert committed(result) == numbers(500)
    places = {}
    for each in broker.records(result):
        places.setdefault(each.key, set()).add(each.partition)
    assert all(len(partitions) == 1 for partitions in places.values())
    plain = f"p-{uuid.uuid4().hex[:12]}"
    broker.create_topic(plain, partitions=3)
    writer = keyed(spark, 17).write.format("flowstone").options(topic=plain)
    writer.option("kafka.bootstrap.servers", broker.bootstrap).mode("append").save()
    assert all(places[each.key] == {each.partition} for each in broker.records(plain))


def test_a_batch_query_that_fails_leaves_nothing_visible(spark, result, save, committed):
    failing = keyed(spark, 300).withColumn(
        "value", expr("if(value = '299', raise_error('the last row'), value)").cast("string")
    )
    with pytest.raises(PySparkException, match="the last row"):
        save(failing)
    assert committed(result) == Counter()
    save(keyed(spark, 300))
    assert committed(result) == numbers(300)


def test_a_numbered_batch_query_is_written_once(spark, broker, options, result, committed):
    """As a function given to foreachBatch does, which Spark may call again with the same micro-batch."""

    def save(count, app_id, version):
        placed = exactly_once(keyed(spark, count), bootstrap=broker.bootstrap, topic=result)
        writer = placed.write.format("flowstone").options(**options, txnAppId=app_id, txnVersion=version)
        writer.mode("append").save()

    for version in (0, 0, 1, 0):
        save(10, "one", version)
    assert committed(result) == Counter(dict.fromkeys(numbers(10), 2))
    save(10, "other", 0)
    assert committed(result) == Counter(dict.fromkeys(numbers(10), 3))


def test_a_streaming_query_has_numbers_of_its_own(topic, fill, options, start):
    fill(topic, ["1"])
    options |= {"txnAppId": "one", "txnVersion": "1"}
    with pytest.raises(StreamingQueryException, match="txnAppId: it numbers batch writes"):
        finish_with_error(start(topic))


def test_each_row_of_a_stream_is_visible_once(topic, result, fill, start, committed):
    fill(topic, [str(number) for number in range(100)])
    finish(start(topic))
    assert committed(result) == numbers(100)


def test_a_micro_batch_that_was_committed_is_not_written_again(topic, result, fill, start, committed, tmp_path):
    """The driver may die after the transaction was committed and before the checkpoint says so."""
    fill(topic, [str(number) for number in range(100)])
    finish(start(topic))
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    fill(topic, [str(number) for number in range(100, 150)])
    finish(start(topic))
    assert committed(result) == numbers(150)


def test_a_new_checkpoint_begins_anew(topic, result, fill, start, committed):
    fill(topic, [str(number) for number in range(10)])
    finish(start(topic))
    finish(start(topic, checkpoint="another"))
    assert committed(result) == Counter(dict.fromkeys(numbers(10), 2))


def test_what_a_run_left_open_is_aborted_by_the_next(broker, topic, result, fill, start, committed):
    """As a driver that died in the middle of a micro-batch leaves it."""
    fill(topic, [str(number) for number in range(20)])
    with Cluster(broker.bootstrap) as cluster:
        abandoned = cluster.begin_transaction(f"flowstone.{result}", 600_000)
        abandoned.add_partitions([(result, 0)])
        finish(start(topic))
        assert committed(result) == numbers(20)
        with pytest.raises(Exception, match="another producer uses this transactional id now"):
            abandoned.commit()


def test_rows_repartitioned_afterwards_are_refused_and_nothing_becomes_visible(topic, result, fill, start, committed):
    fill(topic, [str(number) for number in range(40)])

    def spoiled(rows, **named):
        return exactly_once(rows, **named).repartition(2, col("value"))

    query = start(topic, place=spoiled)
    with pytest.raises(StreamingQueryException, match=r"was written by (2|two) tasks"):
        query.awaitTermination(QUERY_TIMEOUT_S)
    assert committed(result) == Counter()


def test_rows_that_were_not_placed_are_refused(spark, options):
    with pytest.raises(PySparkException, match=r"write pyspark_flowstone\.exactly_once"):
        keyed(spark, 3).write.format("flowstone").options(**options).mode("append").save()


def test_several_topics_are_written_in_one_transaction(spark, broker, result, options, committed):
    letters = f"l-{uuid.uuid4().hex[:12]}"
    broker.create_topic(letters, partitions=2)
    rows = keyed(spark, 60).withColumn("topic", expr(f"if(cast(value as int) % 3 = 0, '{letters}', '{result}')"))
    placed = exactly_once(rows, bootstrap=broker.bootstrap, topic=[letters, result])
    given = {name: value for name, value in options.items() if name != "topic"}
    placed.write.format("flowstone").options(**given).mode("append").save()
    assert committed(letters) == Counter(str(number) for number in range(0, 60, 3))
    assert committed(letters) + committed(result) == numbers(60)


def parts_of(spark, topic, count, *, has_keys, tasks=3):
    rows = spark.range(count, numPartitions=tasks).selectExpr(
        f"'{topic}' AS topic",
        "CAST(id AS string) AS value",
        f"CAST({'id % 7' if has_keys else 'NULL'} AS string) AS key",
    )
    return Part(topic, rows, has_keys=has_keys)


def write_parts(broker, options, *parts):
    rows = placed(parts, bootstrap=broker.bootstrap)
    direct.write(rows, {name: value for name, value in options.items() if name != "topic"})
    return rows._jdf.queryExecution().executedPlan().toString()


def test_rows_without_keys_are_not_exchanged_and_each_task_has_a_partition(spark, broker, result, options, committed):
    plan = write_parts(broker, options, parts_of(spark, result, 300, has_keys=False))
    assert "Exchange" not in plan
    assert committed(result) == numbers(300)
    written = {
        number: sorted(int(each.value) for each in broker.records(result) if each.partition == number)
        for number in range(3)
    }
    assert sorted(written.values()) == [list(range(first, first + 100)) for first in (0, 100, 200)]


def test_rows_with_and_without_keys_are_one_transaction(spark, broker, result, options, committed):
    keyless = f"k-{uuid.uuid4().hex[:12]}"
    broker.create_topic(keyless, partitions=2)
    parts = parts_of(spark, result, 70, has_keys=True), parts_of(spark, keyless, 50, has_keys=False, tasks=5)
    write_parts(broker, options, *parts)
    assert (committed(result), committed(keyless)) == (numbers(70), numbers(50))
    assert {each.partition for each in broker.records(keyless)} == {0, 1}
    homes = {(int(each.value) % 7, each.partition) for each in broker.records(result)}
    assert len(homes) == 7


def test_rows_without_keys_are_exchanged_if_the_topic_has_fewer_partitions_than_spark_has_cores(
    spark, broker, options, committed
):
    single = f"s-{uuid.uuid4().hex[:12]}"
    broker.create_topic(single, partitions=1)
    plan = write_parts(broker, options, parts_of(spark, single, 40, has_keys=False))
    assert "Exchange" in plan
    assert committed(single) == numbers(40)


def test_a_partition_that_a_row_names_is_kept(spark, broker, result, save):
    save(keyed(spark, 30).withColumn("partition", expr("cast(value as int) % 3")))
    assert all(int(each.value) % 3 == each.partition for each in broker.records(result))


def test_a_write_of_the_driver_that_cannot_begin_says_why_and_hides_no_other_error(spark, broker, result, options):
    placed = exactly_once(keyed(spark, 3), bootstrap=broker.bootstrap, topic=result)
    with pytest.raises(QueryError, match=r"^transactional id .* longer than the brokers allow"):
        direct.write(placed, options | {"kafka.transaction.timeout.ms": "36000000"})
    assert HIDE_TRACEBACK not in os.environ


def test_a_topic_that_was_not_named_is_refused(spark, broker, result, options):
    rows = keyed(spark, 3).withColumn("topic", expr("'elsewhere'"))
    placed = exactly_once(rows, bootstrap=broker.bootstrap, topic=[result])
    given = {name: value for name, value in options.items() if name != "topic"}
    with pytest.raises(PySparkException, match="'elsewhere', which is not among the topics given to exactly_once"):
        placed.write.format("flowstone").options(**given).mode("append").save()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.speculation", "true"),
        ("spark.stage.maxConsecutiveAttempts", "4"),
        ("spark.stage.maxConsecutiveAttempts", None),
        ("spark.stage.ignoreDecommissionFetchFailure", "true"),
    ],
)
def test_settings_under_which_a_task_could_run_twice_are_refused(name, value):
    """They are fixed when a session is created, and a process may have only one."""
    settings = {"spark.stage.maxConsecutiveAttempts": "1", name: value}
    session = SimpleNamespace(conf={name: value for name, value in settings.items() if value is not None})
    with pytest.raises(OptionError, match=rf"{re.escape(name)}: it is {value or '4'}, and exactly-once needs"):
        check_settings(session)


def test_the_settings_that_the_message_advises_are_accepted(spark):
    check_settings(spark)


def test_a_topic_that_cannot_be_created_is_refused_at_once(spark, broker):
    with pytest.raises(FlowstoneError, match="topic no name: that is no topic"):
        exactly_once(keyed(spark, 1), bootstrap=broker.bootstrap, topic="no name")
