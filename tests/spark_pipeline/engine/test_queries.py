"""Which streaming queries run a pipeline, and how often each topic is read by them."""

from __future__ import annotations

from pathlib import Path

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


def test_a_union_of_two_sources_is_a_query_beside_those_that_write_their_dead_letters(spark: SparkSession) -> None:
    found = queries(spark, (source("eu"), source("us")), (UNION,), "both")
    assert found == {"eu": ["eu"], "us": ["us"], "both": ["eu", "us"]}


def test_one_source_of_two_topics_is_read_by_one_query_whatever_follows(spark: SparkSession) -> None:
    step = Step("us", ("all",), "SELECT * FROM all WHERE _record.topic = 'orders-us'")
    assert queries(spark, (source("all", "orders-eu", "orders-us"),), (step,), "all", "us") == {"all": ["all"]}
