"""Outputs of a micro-batch: all records of topics and dead letters in one transaction, then each table.

Every output is written once for each micro-batch, identified by the query's id and the number of the micro-batch, also
if a failure between two outputs makes Spark run the micro-batch again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from flowstone.pipeline import formats, tables
from flowstone.pipeline.connecting import spark_options
from flowstone.pipeline.engine.letters import COLUMNS, EMPTY_HEADERS
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import RECORD, ConsoleSink, Delivery, PipelineModel, Sink, TableSink, TopicSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from flowstone.pipeline.engine.counting import Counts
    from flowstone.pipeline.engine.evaluation import Evaluation
    from flowstone.pipeline.engine.queries import Query

# A column that steps may leave in their rows to say in which order rows with the same key were written.
ORDER = "_order"
CONNECT_TIMEOUT_S = 60  # longer than the restart of a broker takes


@dataclass(frozen=True)
class MicroBatchId:
    """The identity of a micro-batch across runs: the query's name in this pipeline, its id in Spark, the number."""

    query: str
    query_id: str
    number: int
    ends: Mapping[str, int]  # "topic-partition" -> the offset at which the micro-batch ends in it


def records(sink: Sink, rows: DataFrame) -> DataFrame:
    """Return the records of a topic sink for the rows of its input, with COLUMNS."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    target = sink.target
    assert isinstance(target, TopicSink)
    written = [each for each in rows.columns if each != RECORD]
    twice = sorted(name for name, count in Counter(map(str.lower, written)).items() if count > 1)
    if twice:
        raise PipelineError(f"sink {sink.name}: {sink.input} has more than one column {twice[0]}", sink.declared_at)
    if target.key and target.key not in written:
        raise PipelineError(
            f"sink {sink.name}: key is {target.key}, and the columns of {sink.input} are {', '.join(written)}",
            sink.declared_at,
        )
    value = formats.encode(rows.select(*_quoted(written)).schema, target.value, formats.subject_of(target.topic))
    return rows.select(
        F.lit(target.topic).alias("topic"),
        _key(rows, target.key).alias("key"),
        value.alias("value"),
        F.expr(EMPTY_HEADERS).alias("headers"),
        F.lit(None).cast("timestamp").alias("timestamp"),
    )


def _key(rows: DataFrame, key: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not key:
        return F.lit(None).cast("binary")
    kind = rows.schema[key].dataType.typeName()
    column = F.col(f"`{key}`")
    if kind in ("struct", "map", "array"):
        column = F.to_json(column)
    return column if kind == "binary" else column.cast("string").cast("binary")


def write_records(model: PipelineModel, parts: Sequence[tuple[str, DataFrame]], batch: MicroBatchId) -> None:
    """Write records, each part with its topic: all in one transaction if delivery is exactly once."""
    from pyspark_flowstone import exactly_once
    from pyspark_flowstone.foreach_batch import direct

    if not parts:
        return
    rows = reduce(lambda one, other: one.unionByName(other), (each.select(*COLUMNS) for _topic, each in parts))
    options = {**spark_options(model), "connectTimeout": f"{CONNECT_TIMEOUT_S}s"}
    options |= _sink_options(model)
    if model.delivery == Delivery.EXACTLY_ONCE:
        topics = sorted({topic for topic, _rows in parts})
        rows = exactly_once(rows, bootstrap=model.bootstrap, topic=topics, connect_timeout_s=CONNECT_TIMEOUT_S)
        options |= {"delivery": "exactly-once", "sinkName": batch.query}
        options |= {"txnAppId": batch.query_id, "txnVersion": str(batch.number)}
    direct.write(rows, options)


def _sink_options(model: PipelineModel) -> dict[str, str]:
    """Return the further options of all topic sinks, which share one write."""
    options: dict[str, str] = {}
    for sink in model.sinks:
        if isinstance(sink.target, TopicSink):
            for name, value in sink.target.options.items():
                if options.setdefault(name, value) != value:
                    raise PipelineError(
                        f"sink {sink.name}: {name} is {value}, and another topic sink has {options[name]}: topic sinks "
                        "of a pipeline are written together and need the same options",
                        sink.declared_at,
                    )
    return options


def write_table(sink: Sink, rows: DataFrame, batch: MicroBatchId) -> tables.Written:
    """Write the rows of a table sink, once for each micro-batch."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    target = sink.target
    assert isinstance(target, TableSink)
    if target.keys and RECORD in rows.columns and ORDER not in rows.columns:
        rows = rows.withColumn(ORDER, F.col(f"{RECORD}.offset"))
    # Two sinks of a query may write one table: the names of the sinks tell their commits apart.
    app_id = f"{batch.query_id}/{sink.name}"
    return tables.write(rows.drop(RECORD), target, tables.MicroBatch(app_id, batch.number, batch.ends))


def write_all(model: PipelineModel, query: Query, evaluation: Evaluation, counts: Counts, batch: MicroBatchId) -> None:
    """Write what a query makes of some rows: records and dead letters in one transaction, then each table."""
    frames = evaluation.frames
    parts = [
        (each.target.topic, records(each, frames[each.input]))
        for each in query.sinks
        if isinstance(each.target, TopicSink)
    ]
    parts += [(model.letters_topic, each) for each in evaluation.letters(counts)]
    write_records(model, parts, batch)
    for sink in query.sinks:
        if isinstance(sink.target, TableSink):
            write_table(sink, frames[sink.input], batch)
        elif not isinstance(sink.target, TopicSink):
            show(sink, frames[sink.input], batch)


def show(sink: Sink, rows: DataFrame, batch: MicroBatchId) -> None:
    """Print the first rows of a micro-batch for a console sink."""
    assert isinstance(sink.target, ConsoleSink)
    print(f"{sink.name}, micro-batch {batch.number}:", flush=True)
    rows.drop(RECORD).show(sink.target.rows_max, truncate=False)


def _quoted(names: Iterable[str]) -> list[str]:
    return [f"`{each}`" for each in names]
