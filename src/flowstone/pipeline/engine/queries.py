"""The streaming queries of a pipeline, and the steps that each of them applies.

Spark runs one streaming plan for each query, and only that plan can keep state between micro-batches. A query therefore
has a root: a source, or a step that keeps state. The streaming plan leads from the sources to the root. All other steps
are applied to each micro-batch of the root's rows, which is read once for all outputs.

A union of two roots' rows belongs to the queries of both: each applies it to its own rows, and to none of the other's
(`Query.absent`). Together they write the rows that a query of both would write, whose micro-batches could be divided
like this too. So no topic is read for a union alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.engine.sources import Range, is_stream, read_batch, read_stream, split_errors, stand_in
from flowstone.pipeline.engine.steps import apply_step, check_rows, enforce
from flowstone.pipeline.engine.unions import children, is_union, operators
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import FormatKind, PipelineModel, Sink, Source, Step, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Operators of Spark's analysed plans that keep state if they are in a stream.
STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "GlobalLimit",
        "Join",  # of two streams
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)
AGGREGATIONS = frozenset({"Aggregate", "Distinct"})
WATERMARK = "EventTimeWatermark"


@dataclass(frozen=True)
class Query:
    """One streaming query. Its name is also the names of its consumer group, checkpoint and exactly-once sink."""

    name: str
    root: str  # a source or step
    sources: tuple[Source, ...]  # streams that its plan reads
    steps: tuple[Step, ...]  # applied to each micro-batch, in order
    sinks: tuple[Sink, ...]
    output_mode: str = "append"
    # The columns of nodes that its steps combine with its own, and of which it has no rows: other queries have them.
    absent: Mapping[str, StructType] = field(default_factory=dict)


@dataclass(frozen=True)
class _Streams:
    """The streaming rows of each node, by which the roots are found."""

    frames: dict[str, DataFrame]  # of steps without the rows that an expectation keeps from what follows
    given: dict[str, DataFrame]  # of steps with all rows
    roots: dict[str, tuple[str, ...]]  # of nodes that depend on a stream
    decoded: dict[str, DataFrame]  # rows of sources, with ERROR


def plan_queries(spark: SparkSession, model: PipelineModel, before: Collection[str] = ()) -> tuple[Query, ...]:
    """Return the queries of a pipeline. Raises PipelineError if Spark cannot analyse it, or a sink reads no stream.

    `before` names the queries of the last run: a union that was a query of its own, whose checkpoint has its progress,
    stays one.
    """
    streams = _streams(spark, model, None, before)
    queries = []
    for root in dict.fromkeys(chain.from_iterable(streams.roots.values())):
        steps = tuple(each for each in model.steps if root in streams.roots.get(each.name, ()) and each.name != root)
        sinks = tuple(each for each in model.sinks if root in streams.roots.get(each.input, ()))
        if not sinks and not _has_rows_to_check(model, root, steps):
            continue
        needed = _needed(model, root, steps, sinks)
        queries.append(
            Query(
                _name(model, root),
                root,
                tuple(each for each in model.sources if each.name in _ancestors(model, root) and is_stream(each)),
                needed,
                sinks,
                _output_mode(streams.frames[root]),
                _absent(streams, root, needed),
            )
        )
    for sink in model.sinks:
        if sink.input not in streams.roots:
            raise PipelineError(
                f"sink {sink.name}: its input {sink.input} reads only tables; a pipeline runs on topics or files",
                sink.declared_at,
            )
    return tuple(queries)


def analysed_frames(spark: SparkSession, model: PipelineModel) -> Mapping[str, DataFrame]:
    """Return streams of all nodes, to look at their columns. Raises PipelineError if Spark cannot analyse a step."""
    return _streams(spark, model, None).frames


def root_rows(
    spark: SparkSession, model: PipelineModel, query: Query, ranges: Mapping[str, Range], *, keeps_records: bool = True
) -> DataFrame:
    """Return the stream of a query's root: all rows of a step, whatever its expectations.

    A topic's rows have ERROR, and without `keeps_records` may lack RECORD.
    """
    root = model.source(query.root)
    if root is not None:
        return read_stream(spark, model, root, ranges.get(root.name, Range()), keeps_records=keeps_records)
    return _streams(spark, leading_to(model, query.root), ranges).given[query.root]


def root_schema(spark: SparkSession, model: PipelineModel, query: Query) -> StructType | None:
    """Return the columns of a query's root if it is a source of a topic, else None."""
    source = model.source(query.root)
    if source is None or not isinstance(source.origin, TopicSource):
        return None
    return stand_in(spark, source).schema


def leading_to(model: PipelineModel, root: str) -> PipelineModel:
    """Return the model with only those sources and steps of which the root's rows are made."""
    needed = _ancestors(model, root)
    sources = tuple(each for each in model.sources if each.name in needed)
    return replace(model, sources=sources, steps=tuple(each for each in model.steps if each.name in needed))


def _streams(
    spark: SparkSession, model: PipelineModel, ranges: Mapping[str, Range] | None, before: Collection[str] = ()
) -> _Streams:
    """Return the streams of all nodes; without ranges stand-ins, which are only good for analysis."""
    streams = _Streams({}, {}, {}, {})
    for source in model.sources:
        if not is_stream(source):
            streams.frames[source.name] = read_batch(spark, model, source, Range())
            continue
        part = (ranges or {}).get(source.name, Range())
        decoded = stand_in(spark, source) if ranges is None else read_stream(spark, model, source, part)
        streams.decoded[source.name] = decoded
        streams.frames[source.name], _failed = split_errors(decoded)
        streams.roots[source.name] = (source.name,)
    for step in model.steps:
        _add_step(spark, step, streams, has_query=_name(model, step.name) in before)
    return streams


def _add_step(spark: SparkSession, step: Step, streams: _Streams, *, has_query: bool) -> None:
    rows = apply_step(spark, step, streams.frames)
    roots = tuple(dict.fromkeys(root for each in step.inputs for root in streams.roots.get(each, ())))
    kept = sum(_stateful_count(streams.frames[each]) for each in step.inputs)
    keeps_state = _stateful_count(rows) > kept
    if roots:
        is_divided = len(roots) == 1 or (not has_query and is_union(spark, step, streams.frames))
        streams.roots[step.name] = roots if is_divided and not keeps_state else (step.name,)
    check_rows(step, rows)  # has Spark analyse all conditions
    streams.given[step.name], streams.frames[step.name] = rows, enforce(step, rows)


def _stateful_count(rows: DataFrame) -> int:
    """Return how many operators of the rows' plan keep state."""
    return sum(_is_stateful(each) for each in operators(rows))


def _is_stateful(operator: Any) -> bool:
    if operator.nodeName() not in STATEFUL or not operator.isStreaming():
        return False
    return operator.nodeName() != "Join" or all(each.isStreaming() for each in children(operator))


def _output_mode(rows: DataFrame) -> str:
    """Return update for an aggregation that no watermark ever finishes, else append."""
    names = {each.nodeName() for each in operators(rows) if each.isStreaming()}
    return "update" if names & AGGREGATIONS and WATERMARK not in names else "append"


def _absent(streams: _Streams, root: str, steps: Sequence[Step]) -> dict[str, StructType]:
    """Return the columns of the nodes that the steps read and that no row of the root reaches."""
    inputs = {name for each in steps for name in each.inputs}
    others = [name for name, roots in streams.roots.items() if name in inputs and root not in roots]
    return {name: streams.frames[name].schema for name in others}


def _has_rows_to_check(model: PipelineModel, root: str, steps: tuple[Step, ...]) -> bool:
    """Return whether rows of the root or of these steps can become dead letters, or are counted."""
    source, step = model.source(root), model.step(root)
    if source is not None and isinstance(source.origin, TopicSource):
        return source.origin.value.kind != FormatKind.RAW or any(each.expectations for each in steps)
    return any(each.expectations for each in (*steps, *([step] if step else ())))


def _needed(model: PipelineModel, root: str, steps: tuple[Step, ...], sinks: tuple[Sink, ...]) -> tuple[Step, ...]:
    """Return the steps that lead to a sink or have expectations."""
    wanted = {each.input for each in sinks} | {each.name for each in steps if each.expectations}
    for step in reversed(steps):
        if step.name in wanted:
            wanted |= set(step.inputs)
    return tuple(each for each in steps if each.name in wanted)


def _ancestors(model: PipelineModel, node: str) -> set[str]:
    found = {node}
    for step in reversed(model.steps):
        if step.name in found:
            found |= set(step.inputs)
    return found


def _name(model: PipelineModel, root: str) -> str:
    streams = [each for each in model.sources if is_stream(each)]
    return model.name if len(streams) == 1 and streams[0].name == root else f"{model.name}.{root}"
