"""Which pipelines need the original records of good rows, and what happens where they were wrongly left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from flowstone.pipeline.engine import evaluation as engine
from flowstone.pipeline.engine.evaluation import Evaluation
from flowstone.pipeline.engine.sources import RECORD_TYPE
from flowstone.pipeline.model import (
    ERROR,
    RECORD,
    Action,
    Expectation,
    Format,
    FormatKind,
    PipelineModel,
    Sink,
    Source,
    Step,
    TableSink,
    TopicSink,
    TopicSource,
)

SOURCE = Source("orders", TopicSource(("orders",), Format(FormatKind.RAW)))
TOPIC = TopicSink("out", Format(FormatKind.JSON))
DIVERT = (Expectation("positive", "id > 0", Action.DIVERT),)
KEEP = (Expectation("positive", "id > 0", Action.KEEP),)


def rows_of(spark: SparkSession) -> DataFrame:
    record = f"CAST(struct('t', 0, id, NULL, NULL, NULL, NULL) AS {RECORD_TYPE}) AS {RECORD}"
    error = f"IF(id = 3, named_struct('stage', 's', 'class', 'c', 'message', 'm'), NULL) AS {ERROR}"
    return spark.range(5).selectExpr("id", record, error)


def are_needed(
    spark: SparkSession, step: str | Step, target: TopicSink | TableSink = TOPIC, expect: tuple[Expectation, ...] = ()
) -> bool:
    step = Step("made", ("orders",), step, expectations=expect) if isinstance(step, str) else step
    evaluation = Evaluation(PipelineModel("p", Path(), (SOURCE,), (step,), ()))
    given = engine.stand_in(spark, rows_of(spark).schema)
    evaluation.add_source("orders", given)
    evaluation.add_steps(spark, (step,))
    return engine.are_records_needed(evaluation, (Sink("out", "made", target),), given)


@pytest.mark.parametrize("sql", ["SELECT * FROM orders WHERE id > 1", "SELECT id FROM orders ORDER BY id LIMIT 3"])
def test_records_that_are_only_handed_on_are_not_needed(spark: SparkSession, sql: str) -> None:
    assert not are_needed(spark, sql)
    assert not are_needed(spark, sql, TableSink("delta", "/t"), KEEP)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, _record.offset AS at FROM orders",
        "SELECT * FROM orders WHERE _record.offset > 1",
        "SELECT DISTINCT * FROM orders",
        "SELECT a.* FROM orders a JOIN (SELECT _record r FROM orders) b ON a.id = b.r.offset",
        "SELECT id, (SELECT max(_record.offset) FROM orders) AS last FROM orders",
        "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM orders WHERE _record.offset > 3)",
    ],
)
def test_records_that_a_step_uses_are_needed(spark: SparkSession, sql: str) -> None:
    assert are_needed(spark, sql)


def test_records_of_rows_that_a_step_computes_by_itself_are_needed(spark: SparkSession) -> None:
    def made(orders: DataFrame) -> DataFrame:
        return orders.where("id > 1").localCheckpoint()

    assert are_needed(spark, Step("made", ("orders",), "", made))


def test_dead_letters_need_the_records_that_their_rows_still_have(spark: SparkSession) -> None:
    assert are_needed(spark, "SELECT * FROM orders", expect=DIVERT)
    assert not are_needed(spark, "SELECT id FROM orders", expect=DIVERT)


def test_an_upsert_needs_the_records_for_their_order(spark: SparkSession) -> None:
    assert are_needed(spark, "SELECT * FROM orders", TableSink("delta", "/t", keys=("id",)))
    assert not are_needed(spark, "SELECT id FROM orders", TableSink("delta", "/t", keys=("id",)))


def test_only_bad_rows_keep_their_record_and_its_use_elsewhere_fails(spark: SparkSession) -> None:
    rows = engine.without_records(rows_of(spark)).persist()
    assert [row[RECORD] is not None for row in rows.orderBy("id").collect()] == [False, False, False, True, False]
    evaluation = Evaluation(PipelineModel("p", Path(), (SOURCE,), (), ()))
    evaluation.add_source("orders", rows, has_records=False)
    good = evaluation.frames["orders"]
    assert good.columns == ["id", RECORD]
    assert sorted(row.id for row in good.drop(RECORD).collect()) == [0, 1, 2, 4]
    assert evaluation.undecoded["orders"].collect()[0][RECORD].offset == 3
    with pytest.raises(PySparkException, match="returns another plan than before"):
        good.select(f"{RECORD}.offset").collect()
    rows.unpersist()
