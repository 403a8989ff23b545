"""The rows of a query for a bounded range of records, as batches: for replays and backfills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from flowstone.pipeline.engine.evaluation import Evaluation
from flowstone.pipeline.engine.queries import Query
from flowstone.pipeline.engine.sources import Range, read_batch
from flowstone.pipeline.model import PipelineModel, Step, TopicSource
from flowstone.pipeline.operations.ranges import Pinned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of each partition, in one batch and one transaction.
OFFSETS_MAX = 200_000


def parts(query: Query, ranges: Mapping[str, Pinned], offsets_max: int) -> Iterator[dict[str, Pinned]]:
    """Yield the ranges in parts that are processed one after the other.

    A query with a step that keeps state is one part: its rows depend on all records.
    """
    mine = {each.name: ranges[each.name] for each in query.sources if each.name in ranges}
    if [each.name for each in query.sources] != [query.root]:
        yield mine
        return
    for each in mine[query.root].chunks(offsets_max):
        yield {query.root: each}


def can_be_read_again(query: Query) -> bool:
    """Return whether all sources of a query are topics, whose records have offsets."""
    return all(isinstance(each.origin, TopicSource) for each in query.sources)


def evaluate(spark: SparkSession, model: PipelineModel, query: Query, ranges: Mapping[str, Pinned]) -> Evaluation:
    """Return the rows of a query's nodes for the records in these ranges."""
    evaluation = Evaluation(model)
    streamed = {each.name for each in query.sources}
    for source in model.sources:
        if source.name in ranges:
            evaluation.add_source(source.name, read_batch(spark, model, source, ranges[source.name].as_range()))
        elif source.name not in streamed and not isinstance(source.origin, TopicSource):
            evaluation.add_source(source.name, read_batch(spark, model, source, Range()))
    evaluation.add_steps(spark, _steps(model, query))
    return evaluation


def _steps(model: PipelineModel, query: Query) -> tuple[Step, ...]:
    """Return the steps up to the query's root, and those that it applies to the root's rows."""
    wanted = {query.root}
    for step in reversed(model.steps):
        if step.name in wanted:
            wanted |= set(step.inputs)
    applied = {each.name for each in query.steps}
    return tuple(each for each in model.steps if each.name in wanted or each.name in applied)
