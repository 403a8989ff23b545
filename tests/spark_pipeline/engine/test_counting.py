"""The numbers of rows of a micro-batch, compared with those that Python counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flowstone.pipeline.engine.evaluation import Evaluation
from flowstone.pipeline.engine.sources import RECORD_TYPE
from flowstone.pipeline.errors import ExpectationFailed
from flowstone.pipeline.model import (
    ERROR,
    RECORD,
    Action,
    Expectation,
    Format,
    FormatKind,
    PipelineModel,
    Source,
    Step,
    TopicSource,
)

COUNT = 60
EXPECTATIONS = (
    Expectation("even, or not", "number % 2 = 0", Action.KEEP),
    Expectation('"small"', "number < 50", Action.DROP),
    Expectation("no third", "number % 3 > 0", Action.DIVERT),
    Expectation("no fifth", "number % 5 > 0", Action.DIVERT),
)
SOURCE = Source("numbers", TopicSource(("numbers",), Format(FormatKind.RAW)))
CHECKED = Step("checked", ("numbers",), "SELECT * FROM numbers", expectations=EXPECTATIONS)
PLAIN = Step("plain", ("checked",), "SELECT * FROM checked WHERE number > 30")


def evaluated(spark: SparkSession, *steps: Step) -> Evaluation:
    """Rows of which every tenth could not be decoded, and what the steps make of the others."""
    evaluation = Evaluation(PipelineModel("p", Path(), (SOURCE,), steps, ()))
    error = f"IF(id % 10 = 9, named_struct('stage', 's', 'class', 'c', 'message', 'm'), NULL) AS {ERROR}"
    values = "'t', 0, id, NULL, NULL, CAST(CAST(id AS string) AS binary), NULL"
    record = f"CAST(struct({values}) AS {RECORD_TYPE}) AS {RECORD}"
    rows = spark.range(COUNT).selectExpr("id AS number", record, error)
    evaluation.add_source("numbers", rows)
    evaluation.add_steps(spark, steps)
    return evaluation


def test_all_rows_are_counted(spark: SparkSession) -> None:
    evaluation = evaluated(spark, CHECKED, PLAIN)
    counts = evaluation.count(
        {
            "all": evaluation.decoded["numbers"],
            "decoded": evaluation.frames["numbers"],
            "checked": evaluation.frames["checked"],
            "plain": evaluation.frames["plain"],
        }
    )
    good = [number for number in range(COUNT) if number % 10 != 9]
    diverted = [number for number in good if number % 3 == 0 or number % 5 == 0]
    kept = [number for number in good if number < 50 and number not in diverted]
    assert counts.rows == {
        "all": COUNT,
        "decoded": len(good),
        "checked": len(kept),
        "plain": sum(number > 30 for number in kept),
    }
    assert counts.undecoded == {"numbers": COUNT - len(good)}
    assert counts.diverted == {"checked": len(diverted)}
    assert counts.letters == COUNT - len(good) + len(diverted)
    assert counts.unmet == {
        "checked": {
            "even, or not": sum(number % 2 == 1 for number in good),
            '"small"': sum(number >= 50 for number in good),
            "no third": sum(number % 3 == 0 for number in good),
            "no fifth": sum(number % 5 == 0 for number in good),
        }
    }
    assert sum(counts.failed.values()) == counts.undecoded["numbers"] + sum(counts.unmet["checked"].values())
    assert evaluation.frames["checked"].count() == len(kept)
    assert sum(part.count() for part in evaluation.letters(counts)) == counts.letters


def test_an_expectation_that_fails_is_named_with_its_count(spark: SparkSession) -> None:
    step = Step(
        "s", ("numbers",), "SELECT * FROM numbers", expectations=(Expectation("few", "number < 40", Action.FAIL),)
    )
    with pytest.raises(ExpectationFailed, match=r"step s: rows do not meet the expectation few \(number < 40\): 18 of"):
        evaluated(spark, step).count()


def test_nothing_is_counted_where_nothing_is_asked(spark: SparkSession) -> None:
    step = Step("s", ("numbers",), "SELECT * FROM numbers")
    evaluation = Evaluation(PipelineModel("p", Path(), (SOURCE,), (step,), ()))
    evaluation.add_source("numbers", spark.range(5))
    evaluation.add_steps(spark, [step])
    assert evaluation.count().rows == {}
    assert evaluation.count({"s": evaluation.frames["s"]}).rows == {"s": 5}
