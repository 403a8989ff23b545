"""Backfill, then live: a batch job reads the past, a streaming query new records, without gaps or duplicates.

Both use the same offsets: the batch job ends there, and the query starts there. They are looked up once, before either
starts, and should be stored with the checkpoint: records that arrive during the backfill belong to the query. The batch
job can be repeated over the same offsets with the same result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

from examples.spark import stage
from flowstone.client import LATEST, Cluster
from flowstone.types import TopicPartition

ORDERS = 3_000
SINCE_MS = stage.START_MS + 15 * 60 * 1000
SCHEMA = "order_id string, event_time timestamp, amount_cents long"


@dataclass(frozen=True)
class Result:
    backfilled: list[str]
    live: list[str]


def end_offsets(bootstrap: str, topic: str) -> str:
    """Return the topic's current end in Spark's format: {"orders": {"0": 512, "1": 488}}."""
    with Cluster(bootstrap) as cluster:
        partitions = [TopicPartition(topic, number) for number in range(cluster.topics([topic])[topic])]
        listed = cluster.list_offsets(dict.fromkeys(partitions, LATEST))
    return json.dumps({topic: {str(each.partition): listed[each].offset for each in partitions}})


def parse(records: DataFrame) -> DataFrame:
    """Parse the records, in both jobs, so that a row is the same whichever job wrote it."""
    return records.select(from_json(col("value").cast("string"), SCHEMA).alias("order")).select("order.*")


def run(spark: SparkSession, bootstrap: str, directory: Path) -> Result:
    topic = stage.new_topic(bootstrap, "orders", partitions=2)
    orders = stage.events("orders", ORDERS)
    first, second, third = orders[: ORDERS // 2], orders[ORDERS // 2 : -500], orders[-500:]
    stage.send(bootstrap, topic, first)

    handover = end_offsets(bootstrap, topic)
    stage.send(bootstrap, topic, second)  # while the backfill is at work
    past = (
        spark.read.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingTimestamp", SINCE_MS)
        .option("endingOffsets", handover)
        .option("minPartitions", 4)  # more tasks than partitions: a large range is divided
        .load()
    )
    parse(past).write.mode("overwrite").parquet(str(directory / "past"))

    coming = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", handover)
        .option("groupId", f"live-{topic}")
        .load()
    )
    query = (
        parse(coming)
        .writeStream.format("parquet")  # a path of its own: in a stream's path only the stream's files count
        .option("path", str(directory / "live"))
        .option("checkpointLocation", str(directory / "live-checkpoint"))
        .start()
    )
    stage.send(bootstrap, topic, third)
    query.processAllAvailable()
    query.stop()

    backfilled, live = (
        sorted(row.order_id for row in spark.read.parquet(str(directory / name)).collect()) for name in ("past", "live")
    )
    print(f"{len(backfilled)} orders from the past, {len(live)} live; both have {len(set(backfilled) & set(live))}")
    return Result(backfilled, live)


if __name__ == "__main__":
    stage.main(run)
