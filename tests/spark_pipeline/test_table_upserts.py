"""Rows that replace or delete others with the same keys: Delta and Iceberg tables against a dictionary."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from flowstone.pipeline import PipelineError, tables
from flowstone.pipeline.model import TableSink
from flowstone.pipeline.tables import ORDER, MicroBatch, Written, delta, iceberg_rewrites, upserts

SCHEMA = f"id bigint, `odd name.x` string, op string, {ORDER} bigint"
ROUNDS = 40 if "FLOWSTONE_SPARK_LONG" in os.environ else 4
Change = tuple[int, str, str, int]


@pytest.fixture(params=["delta", "iceberg"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> TableSink:
    return TableSink(request.param, str(tmp_path / "table"), keys=("id",), delete_when="op = 'd'")


def changes(spark: SparkSession, rows: Sequence[Change]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA)


def contents(spark: SparkSession, target: TableSink) -> dict[int, str]:
    rows = tables.read(spark, target.kind, target.path, {}).collect()
    assert len({row[0] for row in rows}) == len(rows), "a key is there twice"
    return {row[0]: row[1] for row in rows}


def apply(state: dict[int, str], rows: Sequence[Change]) -> None:
    for key, name, op, _order in sorted(rows, key=lambda row: row[3]):
        if op == "d":
            state.pop(key, None)
        else:
            state[key] = name


def test_the_last_row_of_a_key_replaces_the_others(spark: SparkSession, target: TableSink) -> None:
    rows = [(1, "a", "u", 10), (1, "c", "u", 12), (1, "b", "u", 11), (2, "x", "u", 3)]
    assert tables.write(changes(spark, rows), target, MicroBatch("q", 0, {"t-0": 13})).rows == 2
    assert contents(spark, target) == {1: "c", 2: "x"}
    rows = [(1, "d", "d", 14), (2, "y", "u", 15), (3, "never", "d", 16)]
    tables.write(changes(spark, rows), target, MicroBatch("q", 1, {"t-0": 17}))
    assert contents(spark, target) == {2: "y"}
    assert tables.ends_of(target, "q", ["t-0"]) == {"t-0": 17}
    assert tables.write(changes(spark, rows), target, MicroBatch("q", 1, {"t-0": 17})) == Written(0, 0, True)


def test_without_the_order_column_the_last_of_the_rows_counts(spark: SparkSession, target: TableSink) -> None:
    rows = changes(spark, [(1, "a", "u", 3), (1, "b", "u", 2), (1, "c", "u", 1)]).drop(ORDER)
    tables.write(rows, target, None)
    assert contents(spark, target) == {1: "c"}


def test_keys_that_are_partition_columns_or_several(spark: SparkSession, target: TableSink) -> None:
    target = replace(target, keys=("id", "op"), partition_by=("op",), delete_when="")
    tables.write(changes(spark, [(1, "a", "x", 1), (1, "b", "y", 2)]), target, None)
    tables.write(changes(spark, [(1, "c", "y", 3), (2, "d", "x", 4)]), target, None)
    found = {tuple(row)[:3] for row in tables.read(spark, target.kind, target.path, {}).collect()}
    assert found == {(1, "a", "x"), (1, "c", "y"), (2, "d", "x")}


def test_a_row_may_move_to_another_partition(spark: SparkSession, target: TableSink) -> None:
    target = replace(target, partition_by=("op",), delete_when="")
    tables.write(changes(spark, [(1, "a", "x", 1), (2, "b", "x", 2)]), target, None)
    tables.write(changes(spark, [(1, "a", "y", 3)]), target, None)
    found = {tuple(row)[:3] for row in tables.read(spark, target.kind, target.path, {}).collect()}
    assert found == {(1, "a", "y"), (2, "b", "x")}


def test_added_columns_are_merged_and_columns_that_rows_lack_keep_their_values(
    spark: SparkSession, target: TableSink
) -> None:
    target = replace(target, delete_when="")
    tables.write(spark.createDataFrame([(1, "a"), (2, "b")], "id bigint, name string"), target, None)
    tables.write(spark.createDataFrame([(2, 0.5), (3, 1.5)], "id int, total double"), target, None)
    found = sorted(map(tuple, tables.read(spark, target.kind, target.path, {}).collect()))
    assert found == [(1, "a", None), (2, "b", 0.5), (3, None, 1.5)]


def test_a_key_that_is_null_is_one_clear_error(spark: SparkSession, target: TableSink) -> None:
    rows = changes(spark, [(1, "a", "u", 1), (None, "b", "u", 2), (None, "c", "u", 3)])  # type: ignore[list-item]
    with pytest.raises(PipelineError, match="a key is NULL: id in 1 rows"):
        tables.write(rows, target, None)
    assert not list(Path(target.path).rglob("*.parquet"))


def test_more_changes_than_the_driver_can_merge_are_refused(
    spark: SparkSession, target: TableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upserts, "ROWS_MAX", 2)
    with pytest.raises(PipelineError, match=r"changes 3 keys.*set maxOffsetsPerTrigger"):
        tables.write(changes(spark, [(n, "a", "u", n) for n in range(3)]), target, None)


@pytest.mark.parametrize(
    ("change", "schema", "message"),
    [
        ({"keys": ("nope",)}, "id bigint, op string", "keys names nope, and the columns are id, op"),
        ({}, "id double, op string", "the key id is double"),
        ({"delete_when": "gone = 1"}, "id bigint, op string", "delete_when is 'gone = 1', which is no condition"),
        ({"delete_when": "op = = 1"}, "id bigint, op string", "delete_when is 'op = = 1', which is no condition"),
        ({"keys": ()}, "id bigint, op string", "delete_when needs keys"),
    ],
)
def test_what_cannot_work_is_refused_by_the_check(
    spark: SparkSession, target: TableSink, change: dict[str, Any], schema: str, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        tables.check(replace(target, **change), spark.createDataFrame([], schema).schema)


def test_random_histories_of_changes_repeats_and_crashes(
    spark: SparkSession, target: TableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(20)
    state: dict[int, str] = {}
    offset = 0
    for number in range(ROUNDS):
        rows = []
        for _ in range(source.randrange(40)):
            rows.append((source.randrange(12), f"v{offset}", source.choice("uuud"), offset))
            offset += 1
        batch = MicroBatch("q", number, {"t-0": offset})
        crash = source.choice(["before", "after", ""])
        if crash:
            with monkeypatch.context() as patch:
                _plant(patch, crash)
                with pytest.raises(RuntimeError, match="crash"):
                    tables.write(changes(spark, rows), target, batch)
        result = tables.write(changes(spark, rows), target, batch)
        assert result.is_repeated == (crash == "after")
        apply(state, rows)
        if source.random() < 0.3:
            assert tables.write(changes(spark, rows), target, batch).is_repeated
        if source.random() < 0.3:
            tables.compact(target)
        assert contents(spark, target) == state


def _plant(patch: pytest.MonkeyPatch, where: str) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise RuntimeError("crash")

    if where == "before":
        patch.setattr(upserts, "_check_keys", crash)
        return
    patch.setattr(delta, "Written", crash)
    patch.setattr(iceberg_rewrites, "Written", crash)
