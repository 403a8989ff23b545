"""Topic to topic: large orders are copied, with the same key and timestamp, to another topic.

Keys are mapped to partitions as in Kafka's own clients, so records of a key stay together and in order. Every client
can see both ends: the records are in a topic, and the query's lag is a group's. The sink writes at least once: a
micro-batch that is repeated after a crash is written again, so a reader's processing must tolerate duplicates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json, struct, to_json

from examples.spark import stage

ORDERS = 2_000
LARGE_CENTS = 10_000
SCHEMA = "order_id string, customer_id string, amount_cents long"


@dataclass(frozen=True)
class Result:
    orders: list[tuple[str, str, int]]  # key, order, cents: as they are in each partition, one after the other
    timestamps_kept: bool
    lag: int


def forward(spark: SparkSession, bootstrap: str, orders: str, large: str, directory: Path) -> None:
    records = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", orders)
        .option("startingOffsets", "earliest")
        .option("groupId", f"forward-{orders}")
        .load()
    )
    order = from_json(col("value").cast("string"), SCHEMA).alias("order")
    chosen = records.select("key", "timestamp", order).where(col("order.amount_cents") >= LARGE_CENTS)
    query = (
        chosen.select("key", "timestamp", to_json(struct("order.*")).alias("value"))
        .writeStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", large)
        .option("checkpointLocation", str(directory / "forward-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stage.finish(query)


def run(spark: SparkSession, bootstrap: str, directory: Path) -> Result:
    orders = stage.new_topic(bootstrap, "orders", partitions=2)
    large = stage.new_topic(bootstrap, "large-orders", partitions=4)
    stage.send(bootstrap, orders, stage.events("orders", ORDERS))
    forward(spark, bootstrap, orders, large, directory)

    written = (
        spark.read.format("flowstone").option("kafka.bootstrap.servers", bootstrap).option("subscribe", large).load()
    )
    order = from_json(col("value").cast("string"), SCHEMA).alias("order")
    rows = written.select(col("key").cast("string"), "timestamp", "partition", "offset", order).collect()
    rows.sort(key=lambda row: (row.partition, row.offset))
    found = [(row.key, row.order.order_id, row.order.amount_cents) for row in rows]
    lag = stage.lag(bootstrap, f"forward-{orders}", orders)
    times_ms = {int(row.timestamp.timestamp() * 1000) for row in rows}
    kept = times_ms <= {event.timestamp_ms for event in stage.events("orders", ORDERS)}
    partitions = len({row.partition for row in rows})
    print(f"{len(found)} of {ORDERS} orders are large: they are in {partitions} partitions; the lag is {lag}")
    return Result(found, kept, lag)


if __name__ == "__main__":
    stage.main(run)
