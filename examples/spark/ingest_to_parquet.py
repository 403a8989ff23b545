"""Ingest: a topic of JSON becomes a Parquet table with exactly one row per record.

Spark's Parquet sink stores in the table which micro-batches it contains, and the checkpoint stores their offsets: every
run adds the new records. A record that cannot be parsed is a row too, with its text in `unparsed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

from examples.spark import stage
from flowstone.cli.records.event_streams import Event

ORDERS = 2_000
BROKEN = Event(b"customer-0007", b'{"order_id": "o-cut-o', stage.START_MS)
SCHEMA = "order_id string, event_time timestamp, country string, amount_cents long, unparsed string"


@dataclass(frozen=True)
class Result:
    rows: list[int]  # after each run
    order_ids: list[str]
    unparsed: list[str]
    lag: int


def ingest(spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
    """Run the query once, for the records since the last run."""
    records = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("groupId", f"ingest-{topic}")  # the run's progress is this group's lag
        .load()
    )
    order = from_json(col("value").cast("string"), SCHEMA, {"columnNameOfCorruptRecord": "unparsed"})
    rows = records.select("partition", "offset", "timestamp", order.alias("order"))
    query = (
        rows.select("partition", "offset", "timestamp", "order.*")
        .writeStream.format("parquet")
        .option("path", str(directory / "orders"))
        .option("checkpointLocation", str(directory / "orders-checkpoint"))
        .partitionBy("country")
        .trigger(availableNow=True)
        .start()
    )
    stage.finish(query)


def run(spark: SparkSession, bootstrap: str, directory: Path) -> Result:
    topic = stage.new_topic(bootstrap, "orders", partitions=2)
    orders = stage.events("orders", ORDERS)
    rows = []
    for part in (orders[: ORDERS // 2], [*orders[ORDERS // 2 :], BROKEN], []):
        stage.send(bootstrap, topic, part)
        ingest(spark, bootstrap, topic, directory)
        rows.append(spark.read.parquet(str(directory / "orders")).count())
    table = spark.read.parquet(str(directory / "orders"))
    order_ids = [row.order_id for row in table.where("order_id is not null").select("order_id").collect()]
    unparsed = [row.unparsed for row in table.where("unparsed is not null").select("unparsed").collect()]
    lag = stage.lag(bootstrap, f"ingest-{topic}", topic)
    print(f"rows after each run: {', '.join(map(str, rows))}; the lag is {lag}")
    print(f"{len(set(order_ids))} different orders, and what did not parse: {', '.join(unparsed)}")
    return Result(rows, order_ids, unparsed, lag)


if __name__ == "__main__":
    stage.main(run)
