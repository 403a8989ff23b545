"""A backfill on the side: the corrected rows of a range go to a table of their own, which then replaces the old one.

    FLOWSTONE_BACKFILL=2 flowstone pipeline run backfill --once

The variable names the new version. It is part of the pipeline's name, so that the backfill has a consumer group, a
checkpoint and a state of its own and the live pipeline goes on meanwhile; and part of the table's path. Once the new
table has caught up, readers are pointed to it, and the next run of the live pipeline is one of the new version.
"""

import os

from pyspark.sql import DataFrame

from flowstone.pipeline import Pipeline, delta, json, topic

VERSION = os.environ.get("FLOWSTONE_BACKFILL", "1")

pipeline = Pipeline(f"orders-v{VERSION}")
pipeline.source(
    "orders",
    topic("orders", value=json("id string, net double"), starting="earliest", records_per_batch_max=500_000),
)


@pipeline.step
def corrected(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("id", "round(net * 1.19, 2) AS gross")


pipeline.sink("table", corrected, delta(f"lake/orders-v{VERSION}"))

pipeline.case(
    "the tax is in the price",
    given={"orders": [{"id": "o1", "net": 10.0}]},
    expected={"table": [{"id": "o1", "gross": 11.9}]},
)
