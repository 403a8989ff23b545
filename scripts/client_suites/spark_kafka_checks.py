"""The checks of Spark's Kafka connector with our broker, and of equal results with our own format.

    python spark_kafka_checks.py BOOTSTRAP JARS FOLDER

Prints a line of JSON for each check, with its error or null. Later checks depend on earlier ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr

RECORDS = 5000
PARTITIONS = 3
END_TIMEOUT_S = 120
ERROR_CHARACTERS_MAX = 1000

STOCK, OURS = "kafka", "flowstone"
ROWS = (
    "cast(if(id % 10 = 0, null, concat('key-', id)) as binary) as key",
    "cast(if(id % 7 = 0, null, concat('value-', id)) as binary) as value",
    "array(struct('trace' as key, cast(concat('', id) as binary) as value)) as headers",
)


class Checks:
    """The checks, one per public method, in the order of their definition."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark, self._bootstrap, self._folder = spark, bootstrap, folder
        topics = [NewTopic(name, PARTITIONS) for name in ("batch", "stream", "copy", "ours")]
        client = AdminClient({"bootstrap.servers": bootstrap})  # which must live until they are created
        for created in client.create_topics(topics).values():
            created.result(END_TIMEOUT_S)

    def the_stock_sink_writes_a_batch(self) -> None:
        self._write(STOCK, "batch", self._rows())

    def the_stock_source_reads_the_batch(self) -> None:
        _equal(self._values(self._read(STOCK, "batch")), self._values(self._rows()))

    def both_sources_give_the_same_columns_and_rows(self) -> None:
        theirs, ours = (self._read(each, "batch", includeHeaders=True) for each in (STOCK, OURS))
        _equal(ours.dtypes, theirs.dtypes)
        _equal(_sorted(ours), _sorted(theirs))

    def both_sources_take_the_same_offsets_and_times(self) -> None:
        row = self._read(OURS, "batch").where("partition = 1 and offset = 700").collect()[0]
        timestamp_ms = int(row.timestamp.timestamp() * 1000)
        offsets = json.dumps({"batch": {"0": 10, "1": -2, "2": 500}})
        for options in ({"startingOffsets": offsets}, {"endingOffsets": offsets.replace("-2", "-1")}):
            _equal(_sorted(self._read(OURS, "batch", **options)), _sorted(self._read(STOCK, "batch", **options)))
        for name in ("startingTimestamp", "endingTimestamp"):
            given = {name: timestamp_ms, "startingOffsetsByTimestampStrategy": "latest"}
            _equal(_sorted(self._read(OURS, "batch", **given)), _sorted(self._read(STOCK, "batch", **given)))

    def the_stock_source_finds_topics_by_pattern(self) -> None:
        reader = self._spark.read.format(STOCK).option("kafka.bootstrap.servers", self._bootstrap)
        _equal(reader.option("subscribePattern", "bat.*").load().count(), RECORDS)

    def our_sink_writes_what_the_stock_source_reads(self) -> None:
        self._write(OURS, "ours", self._rows())
        _equal(self._values(self._read(STOCK, "ours")), self._values(self._rows()))

    def both_sinks_put_a_key_into_the_same_partition(self) -> None:
        theirs, ours = (self._keys(topic) for topic in ("batch", "ours"))
        _equal(ours, theirs)

    def the_stock_source_and_sink_stream_from_topic_to_topic(self) -> None:
        self._write(STOCK, "stream", self._rows())
        copied = self._stream(STOCK, "stream", maxOffsetsPerTrigger=2000)
        writer = copied.select("key", "value").writeStream.format(STOCK)
        writer = writer.option("kafka.bootstrap.servers", self._bootstrap).option("topic", "copy")
        self._finish(writer, "copied")
        _equal(self._values(self._read(STOCK, "copy")), self._values(self._read(STOCK, "stream")))

    def a_checkpoint_of_the_stock_source_is_continued_by_ours(self) -> None:
        """Check that no record is repeated or lost when only the format's name is changed."""
        for source, rows in ((STOCK, 10), (OURS, 20), (OURS, 30)):
            self._write(STOCK, "stream", self._rows().limit(rows))
            frame = self._stream(source, "stream").select("partition", "offset")
            self._finish(frame.writeStream.format("parquet").option("path", str(self._folder / "table")), "moved")
        found = self._spark.read.parquet(str(self._folder / "table"))
        _equal(_sorted(found), _sorted(self._read(OURS, "stream").select("partition", "offset")))

    def _rows(self) -> DataFrame:
        return self._spark.range(RECORDS).selectExpr(*ROWS)

    def _values(self, frame: DataFrame) -> list[Any]:
        return _sorted(frame.select(col("key"), col("value")))

    def _keys(self, topic: str) -> list[Any]:
        frame = self._read(OURS, topic).where("key is not null")
        return _sorted(frame.select(expr("cast(key as string)").alias("key"), "partition").distinct())

    def _write(self, sink: str, topic: str, frame: DataFrame) -> None:
        writer = frame.write.format(sink).option("kafka.bootstrap.servers", self._bootstrap)
        # Spark's own default refuses what exists; both sinks append.
        writer.option("topic", topic).mode("append").save()

    def _read(self, source: str, topic: str, **options: Any) -> DataFrame:
        reader = self._spark.read.format(source).option("kafka.bootstrap.servers", self._bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def _stream(self, source: str, topic: str, **options: Any) -> DataFrame:
        reader = self._spark.readStream.format(source).option("kafka.bootstrap.servers", self._bootstrap)
        return reader.option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()

    def _finish(self, writer: Any, checkpoint: str) -> None:
        writer = writer.option("checkpointLocation", str(self._folder / checkpoint)).trigger(availableNow=True)
        if not writer.start().awaitTermination(END_TIMEOUT_S):
            raise AssertionError(f"the query did not end within {END_TIMEOUT_S} s")


def _sorted(frame: DataFrame) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def _equal(found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError(f"{str(found)[:200]} is not {str(expected)[:200]}")


def run(checks: Checks) -> None:
    named = {name: each for name, each in vars(Checks).items() if not name.startswith("_")}
    for name, check in named.items():
        print(json.dumps({"check": name.replace("_", " "), "error": _error_of(check, checks)}), flush=True)


def _error_of(check: Callable[[Checks], None], checks: Checks) -> str | None:
    try:
        check(checks)
    except Exception as error:  # any error is the check's result
        return f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
    return None


@contextmanager
def session(jars: str, folder: Path) -> Iterator[SparkSession]:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def main(bootstrap: str, jars: str, folder: str) -> None:
    with session(jars, Path(folder)) as spark:
        run(Checks(spark, bootstrap, Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
