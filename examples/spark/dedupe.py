"""Dedupe: clicks that were delivered twice are in the table once, even if the second arrived in a later run.

A click's id is kept for as long as its repetition may take to arrive, and then removed, so that the state is bounded. A
repetition that arrives later than that becomes a separate row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

from examples.spark import stage

CLICKS = 2_000
SENT_AGAIN = 100  # a producer's program that was restarted, and did not know how far it had come
REMEMBERED = "15 minutes"
SCHEMA = "click_id string, event_time timestamp, user_id string, page string"


@dataclass(frozen=True)
class Result:
    records: int
    click_ids: list[str]


def dedupe(spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
    """Run the query once, for the records since the last run. The known ids are in the checkpoint."""
    records = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("groupId", f"dedupe-{topic}")
        .load()
    )
    clicks = records.select(from_json(col("value").cast("string"), SCHEMA).alias("click")).select("click.*")
    query = (
        clicks.withWatermark("event_time", REMEMBERED)
        .dropDuplicatesWithinWatermark(["click_id"])
        .writeStream.format("parquet")
        .option("path", str(directory / "clicks"))
        .option("checkpointLocation", str(directory / "clicks-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stage.finish(query)


def run(spark: SparkSession, bootstrap: str, directory: Path) -> Result:
    topic = stage.new_topic(bootstrap, "clicks", partitions=2)
    clicks = stage.events("clicks", CLICKS)
    half = CLICKS // 2
    parts = clicks[:half], clicks[half - SENT_AGAIN :]
    for part in parts:
        stage.send(bootstrap, topic, part)
        dedupe(spark, bootstrap, topic, directory)
    records = len(parts[0]) + len(parts[1])
    table = spark.read.parquet(str(directory / "clicks"))
    click_ids = sorted(row.click_id for row in table.select("click_id").collect())
    print(f"{records} records, {len(click_ids)} clicks, {len(click_ids) - len(set(click_ids))} of them twice")
    return Result(records, click_ids)


if __name__ == "__main__":
    stage.main(run)
