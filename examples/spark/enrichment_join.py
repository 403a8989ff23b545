"""Enrichment: each order gets the name and the category of its product from another topic.

The catalogue is read as a table once per run and sent to every task (`broadcast`), so the stream is not shuffled. It is
a left join: an order for a product that is not in the catalogue yet is kept without these columns.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, coalesce, col, from_json, lit, max_by

from examples.spark import stage
from flowstone.cli.records.event_streams import PRODUCTS, Event

ORDERS = 2_000
MISSING = PRODUCTS[7].product_id
ORDER = "order_id string, product_id string, amount_cents long"
PRODUCT = "name string, category string"


@dataclass(frozen=True)
class Result:
    cents: dict[str, int]  # by category
    orders: dict[str, int]


def catalogue(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    """Return the last record of each product."""
    records = (
        spark.read.format("flowstone").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    )
    last = records.groupBy(col("key").cast("string").alias("product_id")).agg(max_by("value", "offset").alias("value"))
    return last.select("product_id", from_json(col("value").cast("string"), PRODUCT).alias("product"))


def enrich(spark: SparkSession, bootstrap: str, topic: str, products: DataFrame, directory: Path) -> None:
    records = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("groupId", f"enrich-{topic}")
        .load()
    )
    orders = records.select(from_json(col("value").cast("string"), ORDER).alias("order")).select("order.*")
    enriched = orders.join(broadcast(products), "product_id", "left").select(
        "order_id",
        "amount_cents",
        col("product.name").alias("name"),
        coalesce("product.category", lit("unknown")).alias("category"),
    )
    query = (
        enriched.writeStream.format("parquet")
        .option("path", str(directory / "enriched"))
        .option("checkpointLocation", str(directory / "enriched-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stage.finish(query)


def run(spark: SparkSession, bootstrap: str, directory: Path) -> Result:
    products = stage.new_topic(bootstrap, "products")
    known = [product for product in PRODUCTS if product.product_id != MISSING]
    older = [Event(each.product_id.encode(), b'{"name": "", "category": "draft"}', stage.START_MS) for each in known]
    newer = [Event(each.product_id.encode(), json.dumps(each._asdict()).encode(), stage.START_MS) for each in known]
    stage.send(bootstrap, products, older + newer)
    orders = stage.new_topic(bootstrap, "orders", partitions=2)
    stage.send(bootstrap, orders, stage.events("orders", ORDERS))

    enrich(spark, bootstrap, orders, catalogue(spark, bootstrap, products), directory)

    cents: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for row in spark.read.parquet(str(directory / "enriched")).collect():
        cents[row.category] += row.amount_cents
        counts[row.category] += 1
    for category, amount in sorted(cents.items()):
        print(f"{category}: {counts[category]} orders, {amount / 100:,.2f} €")
    return Result(dict(cents), dict(counts))


if __name__ == "__main__":
    stage.main(run)
