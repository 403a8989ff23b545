"""Functions at the same time: all end before the first error is raised, and Spark knows whose jobs they start."""

from __future__ import annotations

import threading

import pytest
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


def test_the_first_error_is_raised_when_all_have_ended(spark: SparkSession) -> None:
    failed, ended = threading.Event(), []

    def fail() -> None:
        failed.set()
        raise ValueError("first")

    def go_on() -> None:
        assert failed.wait(30)
        ended.append(1)
        raise KeyError("second")

    with pytest.raises(ValueError, match="first"):
        run_together([fail, go_on, lambda: ended.append(2)])
    assert sorted(ended) == [1, 2]
    run_together([])
