"""Changes of a database into a table: each customer as they are now; deleted ones are gone.

Changes of one customer have the customer's id as their key, so they are in one partition, in order.
"""

from pyspark.sql import DataFrame

from flowstone.pipeline import Pipeline, delta, expect, json, topic

pipeline = Pipeline("cdc")
pipeline.source("changes", topic("customers.changes", value=json("op string, id bigint, name string, city string")))


# Without a key a change cannot be applied: it is worth a look, not a stop.
@pipeline.step(expect=[expect("keyed", "id IS NOT NULL AND op IN ('c', 'u', 'd')", otherwise="divert")])
def customers(changes: DataFrame) -> DataFrame:
    return changes.select("id", "name", "city", "op", "_record")


pipeline.sink("table", customers, delta("lake/customers", keys=["id"], delete_when="op = 'd'", compact_every_s=3600))

pipeline.case(
    "the last change of a customer counts",
    given={
        "changes": [
            {"_key": "1", "op": "c", "id": 1, "name": "Ada", "city": "London"},
            {"_key": "2", "op": "c", "id": 2, "name": "Bob", "city": "Paris"},
            {"_key": "1", "op": "u", "id": 1, "name": "Ada", "city": "Turin"},
            {"_key": "2", "op": "d", "id": 2},
            {"op": "u", "name": "nobody"},
        ]
    },
    expected={"table": [{"id": 1, "name": "Ada", "city": "Turin"}], "letters": [{"stage": "TRANSFORMATION"}]},
)
