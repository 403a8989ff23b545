"""Windows: orders per five minutes of event time, including late ones while their window is open.

The watermark is the latest event time so far minus the allowed delay. A window that ends before it is closed: its row
is written once, and later orders for it are dropped. The delay is a trade-off between early and complete results.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, from_json, sum, unix_millis, window

from examples.spark import stage

ORDERS = 3_000
RUNS = 4  # a quarter of an hour of orders for each
WAIT_S = 120
WINDOW_S = 300
SCHEMA = "event_time timestamp, amount_cents long"


@dataclass(frozen=True)
class Result:
    windows: dict[int, tuple[int, int]]  # start in milliseconds since 1970 -> orders, cents
    written_after_each_run: list[int]


def aggregate(spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
    """Run the query once, for the records since the last run. State and watermark are in the checkpoint."""
    records = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("groupId", f"revenue-{topic}")
        .option("columns", "value")  # the others are not needed, and not moved
        .load()
    )
    orders = records.select(from_json(col("value").cast("string"), SCHEMA).alias("order")).select("order.*")
    windows = (
        orders.withWatermark("event_time", f"{WAIT_S} seconds")
        .groupBy(window("event_time", f"{WINDOW_S} seconds"))
        .agg(count("*").alias("orders"), sum("amount_cents").alias("cents"))
    )
    query = (
        windows.writeStream.format("parquet")
        .outputMode("append")  # closed windows only; "update" would write each change of an open one
        .option("path", str(directory / "revenue"))
        .option("checkpointLocation", str(directory / "revenue-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stage.finish(query)


def run(spark: SparkSession, bootstrap: str, directory: Path) -> Result:
    topic = stage.new_topic(bootstrap, "orders", partitions=2)
    orders = stage.events("orders", ORDERS)
    written = []
    for number in range(RUNS):
        stage.send(bootstrap, topic, orders[number * ORDERS // RUNS : (number + 1) * ORDERS // RUNS])
        aggregate(spark, bootstrap, topic, directory)
        written.append(spark.read.parquet(str(directory / "revenue")).count())
    table = spark.read.parquet(str(directory / "revenue"))
    rows = table.select(unix_millis("window.start").alias("start_ms"), "orders", "cents").collect()
    windows = {row.start_ms: (row.orders, row.cents) for row in rows}
    print(f"closed windows after each run: {', '.join(map(str, written))}")
    for start_ms, (orders_count, cents) in sorted(windows.items())[-3:]:
        print(f"minute {(start_ms - stage.START_MS) // 60_000}: {orders_count} orders, {cents / 100:,.2f} €")
    return Result(windows, written)


if __name__ == "__main__":
    stage.main(run)
