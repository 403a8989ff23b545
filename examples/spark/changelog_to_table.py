"""Changelog to table: the last value of each key as a table that is always complete and current.

Each micro-batch writes the table's next version from the previous one and the new records: the last record of a key
wins, and one without a value removes the key. A repeated micro-batch writes the same version again, so the table is
correct after any crash. Readers use the newest complete version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, max_by, struct

from examples.spark import stage
from flowstone.cli.records.event_streams import Event

READINGS = 3_000
RETIRED = (b"device-003", b"device-042")
SCHEMA = "temperature_c double, battery_percent double"
COMPLETE = "_SUCCESS"  # Spark writes it last


@dataclass(frozen=True)
class Result:
    readings: dict[str, float]  # temperature by device
    versions: int


def merge(directory: Path, changes: DataFrame, batch_id: int) -> None:
    """Write version `batch_id` of the table: the previous one with these changes."""
    spark, before = changes.sparkSession, newest(directory, below=batch_id)
    if before is not None:
        changes = spark.read.parquet(str(before)).unionByName(changes)
    # A key's records are all in one partition, so its offsets tell which is the last.
    last = changes.groupBy("key").agg(max_by(struct("value", "offset"), "offset").alias("last"))
    table = last.select("key", "last.*")  # with tombstones: until they are forgotten, nothing older comes back
    table.write.mode("overwrite").parquet(str(directory / f"version={batch_id}"))


def newest(directory: Path, below: float = float("inf")) -> Path | None:
    versions = {int(path.parent.name.removeprefix("version=")): path.parent for path in directory.glob(f"*/{COMPLETE}")}
    numbers = [number for number in versions if number < below]
    return versions[max(numbers)] if numbers else None


def follow(spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
    """Run the query once, for the records since the last run."""
    records = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("groupId", f"follow-{topic}")
        .option("columns", "key,value,offset")
        .load()
    )
    query = (
        records.writeStream.foreachBatch(partial(merge, directory / "devices"))
        .option("checkpointLocation", str(directory / "devices-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stage.finish(query)


def run(spark: SparkSession, bootstrap: str, directory: Path) -> Result:
    topic = stage.new_topic(bootstrap, "devices", partitions=2)
    readings = stage.events("devices", READINGS)
    tombstones = [Event(key, b"", readings[-1].timestamp_ms) for key in RETIRED]
    for part in (readings[: READINGS // 2], readings[READINGS // 2 :], tombstones):
        stage.send(bootstrap, topic, part)
        follow(spark, bootstrap, topic, directory)

    table = spark.read.parquet(str(newest(directory / "devices"))).where("value is not null")
    reading = from_json(col("value").cast("string"), SCHEMA).alias("reading")
    rows = table.select(col("key").cast("string"), reading).collect()
    found = {row.key: row.reading.temperature_c for row in rows}
    versions = len(list((directory / "devices").glob(f"*/{COMPLETE}")))
    print(f"{READINGS} readings and {len(RETIRED)} tombstones in {versions} versions: a table of {len(found)} devices")
    return Result(found, versions)


if __name__ == "__main__":
    stage.main(run)
