"""Sums of five minutes, and what to do with readings that come too late for them.

Spark forgets a window once the watermark has passed it, and drops later readings silently. Here readings that are more
than an hour old when they arrive are diverted first: they are dead letters, which can be counted, and retried.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from flowstone.pipeline import Pipeline, delta, expect, json, topic

pipeline = Pipeline("late-data")
pipeline.source("readings", topic("readings", value=json("sensor string, value double, at timestamp")))


@pipeline.step(expect=[expect("in_time", "age_s <= 3600", otherwise="divert")])
def in_time(readings: DataFrame) -> DataFrame:
    arrived = F.col("_record.timestamp").cast("double")
    return readings.withColumn("age_s", arrived - F.col("at").cast("double"))


@pipeline.step
def sums(in_time: DataFrame) -> DataFrame:
    windows = in_time.withWatermark("at", "1 hour").groupBy("sensor", F.window("at", "5 minutes").alias("w"))
    return windows.agg(F.sum("value").alias("sum")).selectExpr("sensor", "w.start AS start", "sum")


pipeline.sink("table", sums, delta("lake/sums"))

pipeline.case(
    "a reading of long ago is a dead letter",
    given={
        "readings": [
            {"sensor": "s1", "value": 1.0, "at": "2026-01-01T10:00:00Z"},
            {"sensor": "s1", "value": 2.0, "at": "2999-01-01T10:01:00Z"},
            {"sensor": "s1", "value": 3.0, "at": "2999-01-01T10:04:00Z"},
        ]
    },
    expected={"sums": [{"sensor": "s1", "sum": 5.0}], "letters": [{"stage": "TRANSFORMATION"}]},
)
