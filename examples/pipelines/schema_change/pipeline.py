"""A field that came later: orders of before have no currency, and the table got the column with the first that had one.

The column is added to the schema of the source, where fields that a record lacks are NULL, and the step gives the
default. The table gets the column by itself. `pipeline.py` of before wrote the same table with the two other columns.
"""

from pyspark.sql import DataFrame

from flowstone.pipeline import Pipeline, delta, json, topic

pipeline = Pipeline("schema-change")
pipeline.source("orders", topic("orders", value=json("id string, total double, currency string")))


@pipeline.step
def complete(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("id", "total", "coalesce(currency, 'EUR') AS currency")


pipeline.sink("table", complete, delta("lake/orders"))

pipeline.case(
    "an order of before has the default",
    given={"orders": [{"id": "o1", "total": 1.0}, {"id": "o2", "total": 2.0, "currency": "CHF"}]},
    expected={"table": [{"id": "o1", "currency": "EUR"}, {"id": "o2", "currency": "CHF"}]},
)
