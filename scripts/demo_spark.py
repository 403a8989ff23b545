"""The Spark part of the demo: orders become revenue per five minutes and category, in a table and in a topic.

Two streaming queries compute the same windows of event time. One appends closed windows to a Parquet table, each once;
the other writes every change of a window to a topic, with the window as the key. Both appear as consumer groups. Their
results are compared with what plain Python computes from the same events.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col, expr, from_json, window
from pyspark.sql.streaming.query import StreamingQuery
from scripts.demo_broker import LagWatch
from scripts.demo_events import events

from flowstone.cli.records.event_streams import PRODUCTS, Product

TABLE_GROUP, TOPIC_GROUP = "revenue-table", "revenue-topic"
RESULT_TOPIC = "revenue"
WINDOW_S = 300
# No event is later than this, so none is left out, and the sums can be checked.
WATERMARK = "15 minutes"
RECORDS_PER_BATCH = 70_000
ORDER = "event_time timestamp, order_id string, product_id string, amount_cents long"

# A window is identified by its start, in seconds since 1970, and the category.
Totals = dict[tuple[int, str], tuple[int, int]]  # -> orders, cents


class Outcome(NamedTuple):
    session_s: float
    queries_s: float
    table_lags: list[int]
    topic_lags: list[int]
    table: Totals
    topic: Totals
    expected: Totals

    @property
    def table_is_right(self) -> bool:
        """Return whether all windows in the table are correct; the last windows are still open."""
        return bool(self.table) and self.table.items() <= self.expected.items()


def run_queries(address: str, http_address: str, directory: str, start_ms: int) -> Outcome:
    begun = time.perf_counter()
    spark = _open_session()
    session_s = time.perf_counter() - begun
    try:
        watches = [LagWatch(http_address, group) for group in (TABLE_GROUP, TOPIC_GROUP)]
        begun = time.perf_counter()
        queries = [_start_table(spark, address, directory), _start_topic(spark, address, directory)]
        for query in queries:
            query.awaitTermination()
        queries_s = time.perf_counter() - begun
        lags = [watch.stop() for watch in watches]
        table = _totals(spark.read.parquet(_table(directory)))
        topic = _totals(_read_topic(spark, address))
    finally:
        spark.stop()
    return Outcome(session_s, queries_s, lags[0], lags[1], table, topic, _expected(start_ms))


def _open_session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.master("local[2]")
        .appName("flowstone demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def _revenue(spark: SparkSession, address: str, group: str) -> DataFrame:
    """Return orders with their product's category, summed per five minutes of event time."""
    records = (
        spark.readStream.format("flowstone")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_PER_BATCH)
        .option("groupId", group)
        .option("columns", "value")
        .load()
    )
    orders = records.select(from_json(col("value").cast("string"), ORDER).alias("order")).select("order.*")
    products = spark.createDataFrame(PRODUCTS, list(Product._fields))
    return (
        orders.join(broadcast(products), "product_id")
        .withWatermark("event_time", WATERMARK)
        .groupBy(window("event_time", f"{WINDOW_S} seconds"), "category")
        .agg(expr("count(*) orders"), expr("sum(amount_cents) amount_cents"))
        .select(expr("unix_timestamp(window.start) window_start_s"), "category", "orders", "amount_cents")
    )


def _table(directory: str) -> str:
    return str(Path(directory, "revenue"))


def _start_table(spark: SparkSession, address: str, directory: str) -> StreamingQuery:
    return (
        _revenue(spark, address, TABLE_GROUP)
        .writeStream.format("parquet")
        .option("path", _table(directory))
        .option("checkpointLocation", str(Path(directory, "table-checkpoint")))
        .trigger(availableNow=True)
        .start()
    )


def _start_topic(spark: SparkSession, address: str, directory: str) -> StreamingQuery:
    def write(changed: DataFrame, _batch_id: int) -> None:
        records = changed.selectExpr("concat(window_start_s, ' ', category) key", "to_json(struct(*)) value")
        sink = records.write.format("flowstone").option("kafka.bootstrap.servers", address)
        sink.option("topic", RESULT_TOPIC).mode("append").save()

    return (
        _revenue(spark, address, TOPIC_GROUP)
        .writeStream.outputMode("update")
        .foreachBatch(write)
        .option("checkpointLocation", str(Path(directory, "topic-checkpoint")))
        .trigger(availableNow=True)
        .start()
    )


def _read_topic(spark: SparkSession, address: str) -> DataFrame:
    """Return the last value of each key: a key's records are in one partition, in order."""
    records = spark.read.format("flowstone").option("kafka.bootstrap.servers", address)
    latest = records.option("subscribe", RESULT_TOPIC).load().groupBy("key").agg(expr("max_by(value, offset) value"))
    result = "window_start_s long, category string, orders long, amount_cents long"
    return latest.select(from_json(col("value").cast("string"), result).alias("result")).select("result.*")


def _totals(rows: DataFrame) -> Totals:
    return {(row.window_start_s, row.category): (row.orders, row.amount_cents) for row in rows.collect()}


def _expected(start_ms: int) -> Totals:
    categories = {product.product_id: product.category for product in PRODUCTS}
    orders, cents = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for window_start_s, order in _orders(start_ms):
        place = window_start_s, categories[order["product_id"]]
        orders[place] += 1
        cents[place] += order["amount_cents"]
    return {place: (orders[place], cents[place]) for place in orders}


def _orders(start_ms: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for event in events("orders", start_ms):
        order = json.loads(event.value)
        happened_s = int(datetime.fromisoformat(order["event_time"]).timestamp())
        yield happened_s - happened_s % WINDOW_S, order
