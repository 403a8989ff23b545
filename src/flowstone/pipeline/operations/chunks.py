"""The rows of a query for a bounded range of records, as batches: for replays and backfills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from flowstone.pipeline.engine.evaluation import Evaluation
from flowstone.pipeline.engine.queries import Query, leading_to
from flowstone.pipeline.engine.sources import Range, is_stream, read_batch, split_errors
from flowstone.pipeline.engine.steps import apply_step, enforce
from flowstone.pipeline.model import PipelineModel, Source, Step, TopicSource
from flowstone.pipeline.operations.ranges import Pinned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    for source in model.sources:
        if not is_stream(source):
            evaluation.add_source(source.name, read_batch(spark, model, source, Range()))
    root = model.step(query.root)
    if root is None:
        evaluation.add_source(query.root, _read(spark, model, query.sources[0], ranges))
    else:
        evaluation.add_step_rows(root, _root_rows(spark, leading_to(model, query.root), root, ranges))
    evaluation.add_absent(spark, query.absent)
    evaluation.add_steps(spark, query.steps)
    return evaluation


def _root_rows(spark: SparkSession, model: PipelineModel, root: Step, ranges: Mapping[str, Pinned]) -> DataFrame:
    """Return the rows of a step that keeps state, the last of the model.

    Undecodable records and the expectations of other steps are the business of the queries of the sources.
    """
    frames = {}
    for source in model.sources:
        if is_stream(source):
            frames[source.name], _failed = split_errors(_read(spark, model, source, ranges))
        else:
            frames[source.name] = read_batch(spark, model, source, Range())
    for step in model.steps:
        rows = apply_step(spark, step, frames)
        frames[step.name] = rows if step is root else enforce(step, rows)
    return frames[root.name]


def _read(spark: SparkSession, model: PipelineModel, source: Source, ranges: Mapping[str, Pinned]) -> DataFrame:
    return read_batch(spark, model, source, ranges[source.name].as_range())
