"""The pipeline of the demo: orders with the category of their product, in a topic and in a table.

Its catalogue lacks a product that was added to the shop later. Orders of that product become dead letters. The demo
adds the product, compares both versions with `flowstone pipeline diff`, and retries the dead letters.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from flowstone.pipeline import Pipeline, delta, expect, json, topic

CATALOGUE = {
    "coffee": ["p-01", "p-06"],
    "accessories": ["p-02", "p-05"],
    "tea": ["p-03", "p-07", "p-11"],
    "snacks": ["p-04", "p-08"],
    "equipment": ["p-09", "p-10"],
}

# The demo's runs last seconds: compiling their code well would cost more than it saves.
BRIEF_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

pipeline = Pipeline("sales", spark={"spark.driver.extraJavaOptions": BRIEF_JAVA_OPTIONS})
pipeline.source(
    "orders",
    topic(
        "orders",
        value=json("order_id string NOT NULL, event_time timestamp, product_id string, amount_cents bigint"),
        records_per_batch_max=20_000,
    ),
)


@pipeline.step(expect=[expect("is_in_the_catalogue", "category IS NOT NULL", otherwise="divert")])
def sales(orders: DataFrame) -> DataFrame:
    categories = {product: category for category, products in CATALOGUE.items() for product in products}
    known = F.create_map(*(F.lit(each) for pair in categories.items() for each in pair))
    at_s = F.unix_timestamp("event_time").alias("at_s")
    category = F.try_element_at(known, F.col("product_id")).alias("category")
    return orders.select("order_id", at_s, category, "amount_cents", "_record")


pipeline.sink("topic", sales, topic("sales", key="order_id"))
pipeline.sink("table", sales, delta("lake/sales"))

pipeline.case(
    "an order of an unknown product is a dead letter",
    given={"orders": [{"order_id": "o-1", "product_id": "p-07"}, {"order_id": "o-2", "product_id": "p-99"}]},
    expected={"topic": [{"order_id": "o-1", "category": "tea"}], "letters": [{"stage": "TRANSFORMATION"}]},
)
