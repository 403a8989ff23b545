"""Which streaming queries run a pipeline, and how often each topic is read by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flowstone.pipeline.engine.queries import plan_queries
from flowstone.pipeline.model import Format, FormatKind, PipelineModel, Sink, Source, Step, TopicSink, TopicSource

JSON = Format(FormatKind.JSON, "id bigint")
UNION = Step("both", ("eu", "us"), "SELECT * FROM eu UNION ALL SELECT * FROM us")


def source(name: str, *topics: str) -> Source:
    return Source(name, TopicSource(topics or (name,), JSON))


def sink(name: str) -> Sink:
    return Sink(f"{name}-out", name, TopicSink(f"{name}-out", JSON))


def queries(
    spark: SparkSession, sources: tuple[Source, ...], steps: tuple[Step, ...], *inputs: str
) -> dict[str, list[str]]:
    """Return the sources that each query reads, by the query's root; sinks read the inputs."""
    model = PipelineModel("p", Path(), sources, steps, tuple(map(sink, inputs)))
    return {each.root: [source.name for source in each.sources] for each in plan_queries(spark, model)}


def test_a_topic_with_several_outputs_is_read_by_one_query(spark: SparkSession) -> None:
    step = Step("large", ("eu",), "SELECT * FROM eu WHERE id > 5")
    assert queries(spark, (source("eu"),), (step,), "eu", "large") == {"eu": ["eu"]}


def test_a_union_of_two_sources_belongs_to_the_queries_of_both(spark: SparkSession) -> None:
    found = queries(spark, (source("eu"), source("us")), (UNION,), "both")
    assert found == {"eu": ["eu"], "us": ["us"]}


def test_a_union_that_was_a_query_of_its_own_stays_one(spark: SparkSession) -> None:
    model = PipelineModel("p", Path(), (source("eu"), source("us")), (UNION,), (sink("both"),))
    assert [each.name for each in plan_queries(spark, model, {"p.eu", "p.both"})] == ["p.eu", "p.us", "p.both"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT eu.* FROM eu JOIN us ON eu.id = us.id",
        "SELECT * FROM eu UNION SELECT * FROM us",
        "SELECT count(*) FROM (SELECT * FROM eu UNION ALL SELECT * FROM us)",
    ],
)
def test_a_step_whose_rows_depend_on_both_streams_is_a_query_of_its_own(spark: SparkSession, text: str) -> None:
    found = queries(spark, (source("eu"), source("us")), (Step("both", ("eu", "us"), text),), "both")
    assert found == {"eu": ["eu"], "us": ["us"], "both": ["eu", "us"]}


@pytest.mark.parametrize(
    "text",
    [
        "WITH all AS (SELECT * FROM eu UNION ALL SELECT * FROM us) SELECT id + 1 AS id FROM all WHERE id > 2",
        "SELECT l.id FROM (SELECT * FROM eu UNION ALL SELECT * FROM us) l JOIN range(5) r ON l.id = r.id",
        "SELECT id FROM eu LATERAL VIEW explode(array(1, 2)) t AS x UNION ALL SELECT id FROM us",
    ],
)
def test_a_union_with_row_by_row_operators_belongs_to_both(spark: SparkSession, text: str) -> None:
    found = queries(spark, (source("eu"), source("us")), (Step("both", ("eu", "us"), text),), "both")
    assert found == {"eu": ["eu"], "us": ["us"]}


def test_one_source_of_two_topics_is_read_by_one_query_whatever_follows(spark: SparkSession) -> None:
    step = Step("us", ("all",), "SELECT * FROM all WHERE _record.topic = 'orders-us'")
    assert queries(spark, (source("all", "orders-eu", "orders-us"),), (step,), "all", "us") == {"all": ["all"]}
