"""Outputs of a micro-batch: all records of topics and dead letters in one transaction, then each table.

Every output is written once for each micro-batch, identified by the query's id and the number of the micro-batch, also
if a failure between two outputs makes Spark run the micro-batch again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from flowstone.pipeline import formats, tables
from flowstone.pipeline.connecting import spark_options
from flowstone.pipeline.engine.letters import EMPTY_HEADERS
from flowstone.pipeline.engine.together import run_together
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import RECORD, ConsoleSink, Delivery, PipelineModel, Sink, TableSink, TopicSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from flowstone.pipeline.engine.counting import Counts
    from flowstone.pipeline.engine.evaluation import Evaluation
    from flowstone.pipeline.engine.queries import Query
    from pyspark_flowstone.placement import Part

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


def part_of(sink: Sink, rows: DataFrame) -> Part:
    """Return what a topic sink writes of the rows of its input."""
    from pyspark_flowstone.placement import Part

    assert isinstance(sink.target, TopicSink)
    return Part(sink.target.topic, records(sink, rows), has_keys=bool(sink.target.key))


def _key(rows: DataFrame, key: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not key:
        return F.lit(None).cast("binary")
    kind = rows.schema[key].dataType.typeName()
    column = F.col(f"`{key}`")
    if kind in ("struct", "map", "array"):
        column = F.to_json(column)
    return column if kind == "binary" else column.cast("string").cast("binary")


def write_records(model: PipelineModel, parts: Sequence[Part], batch: MicroBatchId) -> None:
    """Write records, which have COLUMNS: all in one transaction if delivery is exactly once."""
    from pyspark_flowstone.foreach_batch import direct
    from pyspark_flowstone.placement import placed

    if not parts:
        return
    options = {**spark_options(model), "connectTimeout": f"{CONNECT_TIMEOUT_S}s"}
    options |= _sink_options(model)
    if model.delivery == Delivery.EXACTLY_ONCE:
        rows = placed(parts, bootstrap=model.bootstrap, connect_timeout_s=CONNECT_TIMEOUT_S)
        options |= {"delivery": "exactly-once", "sinkName": batch.query}
        options |= {"txnAppId": batch.query_id, "txnVersion": str(batch.number)}
    else:
        rows = reduce(lambda one, other: one.unionByName(other), (each.rows for each in parts))
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
    """Write what a query makes of some rows: records and dead letters in one transaction, and each table.

    All are written at the same time. If one fails, the others are completed, and not written again when the micro-batch
    is repeated. What is not counted yet is counted meanwhile.
    """
    from pyspark_flowstone.placement import Part

    frames = evaluation.frames
    parts = [part_of(each, frames[each.input]) for each in query.sinks if isinstance(each.target, TopicSink)]
    parts += [Part(model.letters_topic, each) for each in evaluation.letters(counts)]
    writes: list[Callable[[], object]] = [partial(write_records, model, parts, batch)] if parts else []
    for sink in query.sinks:
        if not isinstance(sink.target, TopicSink):
            write = write_table if isinstance(sink.target, TableSink) else show
            writes.append(partial(write, sink, frames[sink.input], batch))
    run_together([*writes, *([counts.complete] if counts.uncounted else [])])


def show(sink: Sink, rows: DataFrame, batch: MicroBatchId) -> None:
    """Print the first rows of a micro-batch for a console sink."""
    assert isinstance(sink.target, ConsoleSink)
    print(f"{sink.name}, micro-batch {batch.number}:", flush=True)
    rows.drop(RECORD).show(sink.target.rows_max, truncate=False)


def _quoted(names: Iterable[str]) -> list[str]:
    return [f"`{each}`" for each in names]
