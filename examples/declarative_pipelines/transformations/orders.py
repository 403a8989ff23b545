"""Orders from a topic into a table, the large ones into another topic, and the amounts of each country into a view."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

session = SparkSession.active()
BOOTSTRAP = {"kafka.bootstrap.servers": str(session.conf.get("shop.bootstrap"))}
ORDER = "order_id string, country string, amount_cents bigint"
LARGE = 10_000

dp.create_sink("large_orders_topic", "flowstone", {**BOOTSTRAP, "topic": "large-orders"})


@dp.table
def orders() -> DataFrame:
    given = {**BOOTSTRAP, "subscribe": "orders", "startingOffsets": "earliest", "groupId": "declarative-shop"}
    records = session.readStream.format("flowstone").options(**given).load()
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    return records.select(order).select("order.*")


@dp.append_flow(target="large_orders_topic")
def large_orders() -> DataFrame:
    large = session.readStream.table("orders").where(F.col("amount_cents") >= LARGE)
    return large.select(F.col("order_id").alias("key"), F.to_json(F.struct("*")).alias("value"))


@dp.materialized_view
def amounts_by_country() -> DataFrame:
    return session.read.table("orders").groupBy("country").agg(F.sum("amount_cents").alias("amount_cents"))
