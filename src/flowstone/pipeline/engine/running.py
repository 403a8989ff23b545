"""Starts the streaming queries of a pipeline and writes their micro-batches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from flowstone.pipeline.engine.checkpoints import read_text
from flowstone.pipeline.engine.counting import Counts
from flowstone.pipeline.engine.evaluation import Evaluation, are_records_needed, stand_in, without_records
from flowstone.pipeline.engine.outputs import MicroBatchId, write_all
from flowstone.pipeline.engine.queries import Query, root_rows, root_schema
from flowstone.pipeline.engine.sources import Range, is_stream, read_batch
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import (
    ERROR,
    FileSource,
    PipelineModel,
    TableSource,
    TopicSource,
    Trigger,
    TriggerKind,
)
from flowstone.types import topic_ids_among

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROWS_IN = ""  # counts the rows of the root, beside those of sinks by their names
QUERY_ID = "sql.streaming.queryId"  # a property of Spark's thread while a micro-batch runs


@dataclass(frozen=True)
class BatchReport:
    """The result of one micro-batch."""

    query: str
    number: int
    counts: Counts
    rows_in: int
    rows_out: Mapping[str, int] = field(default_factory=dict)  # by sink
    ends: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


class Listener(Protocol):
    """Receiver of the reports of a run's queries, which come from Spark's threads."""

    def is_stopping(self) -> bool: ...
    def failed(self, query: str, error: Exception) -> None: ...
    def finished(self, report: BatchReport) -> None: ...


@dataclass(frozen=True)
class Start:
    """The location of a query's checkpoint, and the start positions of its sources if the checkpoint is new."""

    checkpoint: str
    ranges: Mapping[str, Range] = field(default_factory=dict)  # by source


def start_query(
    spark: SparkSession, model: PipelineModel, query: Query, start: Start, trigger: Trigger, listener: Listener
) -> StreamingQuery:
    """Start a query, which continues from its checkpoint. Raises PipelineError if Spark refuses it."""
    from pyspark.errors import AnalysisException

    checkpoint, ranges = start.checkpoint, start.ranges
    needs_records = _are_records_needed(spark, model, query)
    rows = root_rows(spark, model, query, ranges, keeps_records=needs_records)
    writer = rows.writeStream.queryName(query.name).outputMode(query.output_mode)
    body = _Body(model, query, checkpoint, listener, needs_records=needs_records)
    writer = writer.option("checkpointLocation", checkpoint).foreachBatch(body)
    try:
        return _start(writer, model, trigger)
    except AnalysisException as error:
        raise PipelineError(f"query {query.name}: {error}") from error


def _start(writer: DataStreamWriter, model: PipelineModel, trigger: Trigger) -> StreamingQuery:
    from pyspark_flowstone.versions import start_once

    if trigger.kind == TriggerKind.ONCE:
        return start_once(writer, is_limited=any(_is_limited(each.origin) for each in model.sources))
    return writer.trigger(processingTime=f"{round(trigger.interval_s * 1000)} milliseconds").start()


def _is_limited(origin: TopicSource | FileSource | TableSource) -> bool:
    if not isinstance(origin, TopicSource):
        return False
    return origin.records_per_batch_max is not None or any(
        name.lower().endswith("pertrigger") for name in origin.options
    )


class StopRequested(Exception):
    """Ends a query before a micro-batch of which nothing has been written, so that it stops between two of them."""


class _Body:
    """The function that Spark calls with each micro-batch of a query."""

    def __init__(
        self, model: PipelineModel, query: Query, checkpoint: str, listener: Listener, *, needs_records: bool
    ) -> None:
        self._model, self._query, self._checkpoint, self._listener = model, query, checkpoint, listener
        self._needs_records = needs_records

    def __call__(self, rows: DataFrame, number: int) -> None:
        if self._listener.is_stopping():
            raise StopRequested
        try:
            report = self._run(rows, number)
        except Exception as error:
            self._listener.failed(self._query.name, error)
            raise
        self._listener.finished(report)

    def _run(self, rows: DataFrame, number: int) -> BatchReport:
        started = time.monotonic()
        spark = rows.sparkSession
        query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
        assert query_id is not None
        ends = read_ends(spark, f"{self._checkpoint}/offsets/{number}")
        batch = MicroBatchId(self._query.name, query_id, number, ends)
        rows, release = self._computed_once(rows if self._needs_records else without_records(rows))
        try:
            evaluation = _evaluate(self._model, self._query, rows, has_records=self._needs_records)
            outputs = {each.name: evaluation.frames[each.input] for each in self._query.sinks}
            counts = evaluation.check({ROWS_IN: rows, **outputs})
            write_all(self._model, self._query, evaluation, counts, batch)
        finally:
            release()
        seconds = time.monotonic() - started
        rows_out = {each: counts.rows.get(each, 0) for each in outputs}
        return BatchReport(self._query.name, number, counts, counts.rows.get(ROWS_IN, 0), rows_out, ends, seconds)

    def _computed_once(self, rows: DataFrame) -> tuple[DataFrame, Callable[[], object]]:
        """Return the rows such that Spark computes them once for all outputs, and a function that frees them.

        Spark does not find persisted rows of a stateful plan again, and two tasks that commit one partition of the
        state at once fail. Such rows are computed here and cut off from their plan.
        """
        if self._model.step(self._query.root) is None:
            persisted = rows.persist()
            return persisted, persisted.unpersist
        computed = rows.localCheckpoint(eager=True)
        return computed, lambda: computed._jdf.queryExecution().analyzed().rdd().unpersist(False)


def _are_records_needed(spark: SparkSession, model: PipelineModel, query: Query) -> bool:
    """Return whether an output of the query needs the original records of good rows."""
    schema = root_schema(spark, model, query)
    if schema is None or ERROR not in schema.names:
        return True
    given = stand_in(spark, schema)
    return are_records_needed(_evaluate(model, query, given), query.sinks, given)


def _evaluate(model: PipelineModel, query: Query, rows: DataFrame, *, has_records: bool = True) -> Evaluation:
    """Return the rows of all nodes of a query for rows of its root."""
    evaluation, spark = Evaluation(model), rows.sparkSession
    for source in model.sources:
        if not is_stream(source):
            evaluation.add_source(source.name, read_batch(spark, model, source, Range()))
    root = model.step(query.root)
    if root is None:
        evaluation.add_source(query.root, rows, has_records=has_records)
    else:
        evaluation.add_step_rows(root, rows)
    evaluation.add_absent(spark, query.absent)
    evaluation.add_steps(spark, query.steps)
    return evaluation


def read_ends(spark: Any, path: str) -> dict[str, int]:
    """Return where a micro-batch ends in each partition, from the line of each topic source in Spark's offset log."""
    ends: dict[str, int] = {}
    for document in _offset_documents(spark, path):
        for topic, partitions in document.items():
            if isinstance(partitions, dict):
                ends.update({f"{topic}-{number}": int(offset) for number, offset in partitions.items()})
    return ends


def read_topic_ids(spark: Any, path: str) -> dict[str, bytes]:
    """Return the ids of the topics that a micro-batch read, from Spark's offset log."""
    return {
        topic: topic_id
        for document in _offset_documents(spark, path)
        for topic, topic_id in topic_ids_among(document).items()
    }


def _offset_documents(spark: Any, path: str) -> list[dict[str, Any]]:
    lines = read_text(spark, path).splitlines()[2:]  # after the version and the metadata of the micro-batch
    return [json.loads(line) for line in lines if line.startswith("{")]
