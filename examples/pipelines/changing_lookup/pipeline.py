"""A join with a table that changes slowly: each order with the price that was valid when it was made.

The table is read anew for each micro-batch. It has a row for each price and the time from which it is valid.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from flowstone.pipeline import Pipeline, delta, expect, json, topic

pipeline = Pipeline("changing-lookup")
pipeline.source("orders", topic("orders", value=json("id string, product string, quantity int, at timestamp")))
pipeline.source("prices", delta("lake/prices"))


# An order for an unknown product becomes a dead letter, and `letters retry` sends it again once the price is there.
@pipeline.step(expect=[expect("priced", "total IS NOT NULL", otherwise="divert")])
def priced(orders: DataFrame, prices: DataFrame) -> DataFrame:
    ends = prices.selectExpr(
        "product AS priced", "price", "since", "lead(since) OVER (PARTITION BY product ORDER BY since) AS until"
    )
    valid = "product = priced AND at >= since AND (until IS NULL OR at < until)"
    joined = orders.alias("o").join(ends, on=F.expr(valid), how="left")
    return joined.selectExpr("id", "product", "quantity * price AS total", "_record")


pipeline.sink("out", priced, topic("orders-priced", key="id"))

pipeline.case(
    "an order has the price of its time",
    given={
        "orders": [
            {"id": "o1", "product": "tea", "quantity": 2, "at": "2026-11-01T10:00:00Z"},
            {"id": "o2", "product": "tea", "quantity": 2, "at": "2026-11-03T10:00:00Z"},
            {"id": "o3", "product": "mate", "quantity": 1, "at": "2026-11-03T10:00:00Z"},
        ],
        "prices": [
            {"product": "tea", "price": 1.0, "since": "2026-11-01T00:00:00Z"},
            {"product": "tea", "price": 1.5, "since": "2026-11-02T00:00:00Z"},
        ],
    },
    expected={
        "out": [{"id": "o1", "total": 2.0}, {"id": "o2", "total": 3.0}],
        "letters": [{"stage": "TRANSFORMATION"}],
    },
)
