"""Topics as tables in SQL: CREATE TABLE, SELECT, INSERT INTO, and streams that read and write a table."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from flowstone import Broker


@pytest.fixture
def table(spark: SparkSession, broker: Broker) -> Iterator[str]:
    """The name of a table with the columns key and value, and of its topic."""
    name = f"orders_{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=2)
    spark.sql(
        f"CREATE TABLE {name} USING flowstone OPTIONS (`kafka.bootstrap.servers` '{broker.bootstrap}',"
        f" subscribe '{name}', topic '{name}', startingOffsets 'earliest', columns 'key,value',"
        f" `kafka.compression.type` 'lz4')"
    )
    yield name
    spark.sql(f"DROP TABLE {name}")


def rows_of(spark: SparkSession, table: str) -> list[tuple[str, str]]:
    chosen = spark.sql(f"SELECT string(key), string(value) FROM {table}").collect()
    return sorted((row[0], row[1]) for row in chosen)


def test_what_is_inserted_is_selected(spark: SparkSession, table: str) -> None:
    spark.sql(f"INSERT INTO {table} SELECT binary(string(id)), binary(concat('v', id)) FROM range(3)")
    spark.sql(f"INSERT INTO {table} (value, key) VALUES (binary('w'), binary('9'))")
    assert rows_of(spark, table) == [("0", "v0"), ("1", "v1"), ("2", "v2"), ("9", "w")]


def test_a_stream_reads_the_table_and_another_writes_it(spark: SparkSession, table: str, tmp_path: Path) -> None:
    spark.sql(f"INSERT INTO {table} SELECT binary(string(id)), binary('in') FROM range(2)")
    read = spark.readStream.table(table).selectExpr("key", "binary(concat(string(value), '-out')) AS value")
    writer = read.writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert writer.toTable(table).awaitTermination(120)
    assert rows_of(spark, table) == [("0", "in"), ("0", "in-out"), ("1", "in"), ("1", "in-out")]


def test_rows_of_a_table_go_where_other_options_say(spark: SparkSession, broker: Broker, table: str) -> None:
    broker.create_topic("elsewhere")
    spark.sql(f"INSERT INTO {table} VALUES (binary('1'), binary('v'))")
    rows = spark.table(table)
    with pytest.raises(PySparkException, match=r"kafka\.bootstrap\.servers: the sink needs it"):
        rows.write.format("flowstone").option("topic", "elsewhere").mode("append").save()
    there = rows.write.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
    there.option("topic", "elsewhere").mode("append").save()
    assert len(broker.records("elsewhere")) == 1
    assert rows_of(spark, table) == [("1", "v")]


def test_an_unknown_option_is_refused_when_the_table_is_created(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(PySparkException, match="subscribed: the source has no such option"):
        spark.sql(
            f"CREATE TABLE refused USING flowstone OPTIONS (`kafka.bootstrap.servers` '{broker.bootstrap}',"
            f" subscribed 't')"
        )
