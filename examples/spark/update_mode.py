"""Update mode: the amount that each customer has spent, as a topic with a record for every change.

Spark has no update mode for Python sinks, so `to_topic` writes each micro-batch in `foreachBatch`: only the customers
whose sum changed, all in one transaction. The last record of a key is its sum, so the topic can be compacted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

from examples.spark import stage
from flowstone.cli.records.event_streams import Event
from pyspark_flowstone import to_topic

ORDERS = 1_000
SCHEMA = "customer_id string, amount_cents long"


@dataclass(frozen=True)
class Result:
    sums: dict[str, int]  # by customer, the last record of each key
    records: int


def sum_up(spark: SparkSession, bootstrap: str, orders: str, sums: str, directory: Path) -> None:
    records = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", orders)
        .option("startingOffsets", "earliest")
        .load()
    )
    order = records.select(from_json(col("value").cast("string"), SCHEMA).alias("order")).select("order.*")
    spent = order.groupBy("customer_id").sum("amount_cents")
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": sums,
        "delivery": "exactly-once",
        "sinkName": f"sums-of-{orders}",
    }
    query = (
        spent.selectExpr("customer_id key", "cast(`sum(amount_cents)` as string) value")
        .writeStream.outputMode("update")
        .foreachBatch(to_topic(options))
        .option("checkpointLocation", str(directory / "sums-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stage.finish(query)


def run(spark: SparkSession, bootstrap: str, directory: Path) -> Result:
    orders = stage.new_topic(bootstrap, "orders", partitions=2)
    sums = stage.new_topic(bootstrap, "sums", partitions=2)
    events = stage.events("orders", ORDERS)
    half: list[list[Event]] = [events[: ORDERS // 2], events[ORDERS // 2 :]]
    for part in half:  # a run of the query for each
        stage.send(bootstrap, orders, part)
        sum_up(spark, bootstrap, orders, sums, directory)

    reader = spark.read.format("flowstone").option("kafka.bootstrap.servers", bootstrap).option("subscribe", sums)
    rows = reader.load().selectExpr("cast(key as string) key", "cast(value as string) value", "offset").collect()
    rows.sort(key=lambda row: row.offset)
    found = {row.key: int(row.value) for row in rows}
    print(f"{ORDERS} orders in two runs: {len(found)} customers, {len(rows)} changes of their sums")
    return Result(found, len(rows))


if __name__ == "__main__":
    stage.main(run)
