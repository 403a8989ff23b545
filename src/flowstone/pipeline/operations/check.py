"""`check`: finds mistakes in a pipeline without writing anything.

Formats and registries, the broker and its topics, Spark's analysis of all steps and conditions, and the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from flowstone.client import ClientError, Cluster
from flowstone.pipeline import formats, tables
from flowstone.pipeline.engine.outputs import records
from flowstone.pipeline.engine.queries import Query, analysed_frames, plan_queries
from flowstone.pipeline.engine.session import ship
from flowstone.pipeline.errors import PipelineError, Place
from flowstone.pipeline.model import RECORD, PipelineModel, Sink, TableSink, TopicSink, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONNECT_TIMEOUT_S = 5.0


def check(model: PipelineModel, open_spark: Callable[[], SparkSession]) -> tuple[list[PipelineError], list[Query]]:
    """Return the mistakes found, and the queries that would run if there are none."""
    problems = list(_topics(model))
    spark = open_spark()
    problems += _formats(model)
    if problems:
        return problems, []
    ship(model)
    try:
        queries = list(plan_queries(spark, model))
        frames = analysed_frames(spark, model)
    except PipelineError as error:
        return [error], []
    return [problem for each in model.sinks for problem in _sink(each, frames[each.input])], queries


def _formats(model: PipelineModel) -> Iterator[PipelineError]:
    for source in model.sources:
        if isinstance(source.origin, TopicSource):
            with _collected() as found:
                formats.check(source.origin.value, formats.subject_of(*source.origin.topics))
            yield from found.named(f"source {source.name}", source.declared_at)
    for sink in model.sinks:
        if isinstance(sink.target, TopicSink) and (sink.target.value.schema or sink.target.value.registry):
            with _collected() as found:
                formats.check(sink.target.value, formats.subject_of(sink.target.topic), is_sink=True)
            yield from found.named(f"sink {sink.name}", sink.declared_at)


def _topics(model: PipelineModel) -> Iterator[PipelineError]:
    try:
        with Cluster(model.bootstrap, client_id="flowstone-pipeline", deadline_s=CONNECT_TIMEOUT_S) as cluster:
            there = cluster.topics()
    except ClientError as error:
        yield PipelineError(f"bootstrap: no broker at {model.bootstrap} answers ({error})")
        return
    for source in model.sources:
        if isinstance(source.origin, TopicSource) and not source.origin.pattern:
            for topic in source.origin.topics:
                if topic not in there:
                    advice = f"create it with `flowstone topic create {topic}`"
                    yield PipelineError(
                        f"source {source.name}: there is no topic {topic}; {advice}", source.declared_at
                    )


def _sink(sink: Sink, rows: DataFrame) -> Iterator[PipelineError]:
    with _collected() as found:
        if isinstance(sink.target, TopicSink):
            records(sink, rows)
        elif isinstance(sink.target, TableSink):
            tables.check(sink.target, rows.drop(RECORD).schema)
    yield from found.named(f"sink {sink.name}", sink.declared_at)


class _collected:  # noqa: N801 - used like a function
    """A context that catches a PipelineError, to be reported with the others."""

    def __init__(self) -> None:
        self._error: PipelineError | None = None

    def __enter__(self) -> _collected:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._error = error if isinstance(error, PipelineError) else None
        return self._error is not None

    def named(self, name: str, place: Place | None) -> Iterator[PipelineError]:
        """Yield the error, if there was one, with the declaration that it belongs to."""
        if self._error is None:
            return
        message = str(self._error)
        yield (
            self._error if self._error.place or message.startswith(name) else PipelineError(f"{name}: {message}", place)
        )
