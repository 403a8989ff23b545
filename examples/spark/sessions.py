"""Sessions: a user's clicks without a pause of five minutes between them are one visit.

A late click may extend a visit, or join two of them, until the watermark has passed the visit's end and its pause: then
its row is written, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, from_json, session_window, unix_millis

from examples.spark import stage

CLICKS = 3_000
PAUSE_S = 300
WAIT_S = 900  # no click is later than ten minutes, so none is left out
SCHEMA = "event_time timestamp, user_id string, page string"


class Session(NamedTuple):
    user_id: str
    start_ms: int
    end_ms: int  # of the last click, and the pause after it
    clicks: int


@dataclass(frozen=True)
class Result:
    sessions: list[Session]


def sessionize(spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
    """Run the query once, for the records since the last run. Open visits are in the checkpoint."""
    records = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("groupId", f"visits-{topic}")
        .load()
    )
    clicks = records.select(from_json(col("value").cast("string"), SCHEMA).alias("click")).select("click.*")
    visits = (
        clicks.withWatermark("event_time", f"{WAIT_S} seconds")
        .groupBy("user_id", session_window("event_time", f"{PAUSE_S} seconds").alias("visit"))
        .agg(count("*").alias("clicks"))
    )
    query = (
        visits.writeStream.format("parquet")
        .outputMode("append")
        .option("path", str(directory / "visits"))
        .option("checkpointLocation", str(directory / "visits-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stage.finish(query)


def run(spark: SparkSession, bootstrap: str, directory: Path) -> Result:
    topic = stage.new_topic(bootstrap, "clicks", partitions=2)
    clicks = stage.events("clicks", CLICKS)
    for part in (clicks[: CLICKS // 2], clicks[CLICKS // 2 :]):
        stage.send(bootstrap, topic, part)
        sessionize(spark, bootstrap, topic, directory)
    table = spark.read.parquet(str(directory / "visits"))
    rows = table.select("user_id", unix_millis("visit.start"), unix_millis("visit.end"), "clicks").collect()
    sessions = sorted(Session(*row) for row in rows)
    longest = max(sessions, key=lambda session: session.clicks)
    print(f"{len(sessions)} visits are over, of {sum(session.clicks for session in sessions)} clicks in all")
    print(f"the most clicks: {longest.clicks}, by {longest.user_id}")
    return Result(sessions)


if __name__ == "__main__":
    stage.main(run)
