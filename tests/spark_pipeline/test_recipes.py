"""The recipes of docs/pipeline-recipes.md: their own tests, and runs that show what the page says of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flowstone import Broker
from flowstone.pipeline.authoring.loading import load
from flowstone.pipeline.operations.cases import run_cases
from flowstone.pipeline.operations.harness import PipelineUnderTest
from flowstone.pipeline.operations.rows import compare

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path.parent.name for path in (ROOT / "examples/pipelines").glob("*/pipeline.py"))

long = pytest.mark.skipif("FLOWSTONE_SPARK_LONG" not in os.environ, reason="minutes: set FLOWSTONE_SPARK_LONG=1")


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    with Broker(settings={"num.partitions": 1}) as broker:
        yield broker


def under_test(spark: SparkSession, broker: Broker, scratch: Path, recipe: str) -> PipelineUnderTest:
    return PipelineUnderTest(ROOT / "examples/pipelines" / recipe, broker, scratch, lambda: spark)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_cases_of_a_recipe_pass(spark: SparkSession, recipe: str) -> None:
    for result in run_cases(lambda: spark, load(ROOT / "examples/pipelines" / recipe)):
        assert result.is_passed, result.comparisons


def test_the_case_of_the_pipeline_of_the_demo_passes(spark: SparkSession) -> None:
    (result,) = run_cases(lambda: spark, load(ROOT / "scripts/demo_sales"))
    assert result.is_passed, result.comparisons


def test_every_recipe_is_on_the_page() -> None:
    page = (ROOT / "docs/pipeline-recipes.md").read_text(encoding="utf-8")
    assert [recipe for recipe in RECIPES if f"examples/pipelines/{recipe}/pipeline.py" not in page] == []


def test_changes_are_applied_over_several_runs(spark: SparkSession, own_broker: Broker, tmp_path: Path) -> None:
    pipeline = under_test(spark, own_broker, tmp_path, "cdc_into_a_table")
    pipeline.feed("changes", [{"_key": str(n), "op": "c", "id": n, "name": f"n{n}", "city": "Rome"} for n in range(4)])
    pipeline.run()
    pipeline.feed("changes", [{"_key": "1", "op": "d", "id": 1}, {"_key": "2", "op": "u", "id": 2, "name": "new"}])
    pipeline.run()
    assert sorted((row["id"], row["name"]) for row in pipeline.rows("table")) == [(0, "n0"), (2, "new"), (3, "n3")]


@long
def test_a_session_is_written_when_it_is_over(spark: SparkSession, own_broker: Broker, tmp_path: Path) -> None:
    pipeline = under_test(spark, own_broker, tmp_path, "sessions")

    def click(at: str) -> dict[str, Any]:
        return {"visitor": "v1", "page": "/", "at": f"2026-11-01T{at}:00Z"}

    pipeline.feed("clicks", [click("10:00"), click("10:05")])
    pipeline.run()
    assert pipeline.rows("table") == []
    pipeline.feed("clicks", [click("10:40")])
    pipeline.run()
    assert [(row["visitor"], row["clicks"]) for row in pipeline.rows("table")] == [("v1", 2)]


def test_a_backfill_has_a_name_and_a_table_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    for version in ("1", "2"):
        monkeypatch.setenv("FLOWSTONE_BACKFILL", version)
        models.append(load(ROOT / "examples/pipelines/backfill"))
    assert [each.name for each in models] == ["orders-v1", "orders-v2"]
    assert len({each.checkpoint_root + each.name for each in models}) == 2
    assert len({sink.target.path for each in models for sink in each.sinks}) == 2  # type: ignore[union-attr]


@long
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_as_a_stream(spark: SparkSession, own_broker: Broker, tmp_path: Path, recipe: str) -> None:
    pipeline = under_test(spark, own_broker, tmp_path, recipe)
    [case] = pipeline.model.cases
    for source, rows in case.given.items():
        pipeline.feed(source, rows)
    pipeline.run()
    sinks = {each.name for each in pipeline.model.sinks}
    for name, expected in case.expected.items():
        if name == "letters":
            assert compare(expected, pipeline.letters()).is_equal
        elif name in sinks:
            assert compare(expected, pipeline.rows(name)).is_equal, name
