"""Functions at the same time: Spark knows whose jobs they start."""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession

from flowstone.pipeline.engine.together import run_together


def test_functions_run_at_the_same_time_with_the_properties_of_the_thread(spark: SparkSession) -> None:
    context, found = spark.sparkContext, []
    both = threading.Barrier(2, timeout=30)

    def look() -> None:
        both.wait()
        found.append((context.getLocalProperty("of.the.caller"), spark.range(5).count()))

    context.setLocalProperty("of.the.caller", "yes")
    try:
        run_together([look, look])
    finally:
        context.setLocalProperty("of.the.caller", None)
    assert found == [("yes", 5), ("yes", 5)]
