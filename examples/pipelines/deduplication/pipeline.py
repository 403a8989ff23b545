"""Deduplication: a payment that its producer has sent several times is written once.

Two ways at once. The topic gets the first of the payments with an id that come within an hour: Spark keeps their ids
that long. The table has one row for each id for ever, because a row with the same key replaces the one before.
"""

from pyspark.sql import DataFrame

from flowstone.pipeline import Pipeline, delta, json, topic

pipeline = Pipeline("deduplication")
pipeline.source("payments", topic("payments", value=json("id string, amount double, at timestamp")))


@pipeline.step
def first(payments: DataFrame) -> DataFrame:
    # The time is among the columns so that Spark can forget the ids of payments from before the watermark.
    return payments.drop("_record").withWatermark("at", "1 hour").dropDuplicates(["id", "at"])


pipeline.sink("out", first, topic("payments-once", key="id"))
pipeline.sink("table", "payments", delta("lake/payments", keys=["id"]))

pipeline.case(
    "a payment that is sent again is written once",
    given={
        "payments": [
            {"_key": "p1", "id": "p1", "amount": 5.0, "at": "2026-11-01T10:00:00Z"},
            {"_key": "p1", "id": "p1", "amount": 5.0, "at": "2026-11-01T10:00:00Z"},
            {"_key": "p2", "id": "p2", "amount": 5.0, "at": "2026-11-01T10:00:00Z"},
        ]
    },
    expected={"out": [{"id": "p1"}, {"id": "p2"}], "table": [{"id": "p1"}, {"id": "p2"}]},
)
