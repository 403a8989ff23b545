"""Which streaming queries run a pipeline, and which steps each of them applies where.

Spark runs one streaming plan for each query, and only that plan can keep state between micro-batches. A query therefore
has a root: a source, or a step that keeps state or combines streams. The streaming plan leads from the sources to the
root. All other steps are applied to each micro-batch of the root's rows, which is read once for all outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.engine.sources import Range, is_stream, read_batch, read_stream, split_errors, stand_in
from flowstone.pipeline.engine.steps import apply_step, check_rows, enforce
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


@dataclass(frozen=True)
class _Streams:
    """The streaming rows of each node, by which the roots are found."""

    frames: dict[str, DataFrame]
    roots: dict[str, str]  # of nodes that depend on a stream
    decoded: dict[str, DataFrame]  # rows of sources, with ERROR


def plan_queries(spark: SparkSession, model: PipelineModel) -> tuple[Query, ...]:
    """Return the queries of a pipeline. Raises PipelineError if Spark cannot analyse it, or a sink reads no stream."""
    streams = _streams(spark, model, None)
    queries = []
    for root in dict.fromkeys(streams.roots.values()):
        steps = tuple(each for each in model.steps if streams.roots.get(each.name) == root and each.name != root)
        sinks = tuple(each for each in model.sinks if streams.roots.get(each.input) == root)
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


def stateful_steps(spark: SparkSession, model: PipelineModel) -> tuple[str, ...]:
    """Return the names of the steps that run in Spark's streaming plan, whose state a checkpoint has."""
    roots = _streams(spark, model, None).roots
    return tuple(each.name for each in model.steps if roots.get(each.name) == each.name)


def root_rows(
    spark: SparkSession, model: PipelineModel, query: Query, ranges: Mapping[str, Range], *, keeps_records: bool = True
) -> DataFrame:
    """Return the stream of a query's root; a topic's rows have ERROR, and without `keeps_records` may lack RECORD."""
    root = model.source(query.root)
    if root is not None:
        return read_stream(spark, model, root, ranges.get(root.name, Range()), keeps_records=keeps_records)
    return _streams(spark, _leading_to(model, query.root), ranges).frames[query.root]


def root_schema(spark: SparkSession, model: PipelineModel, query: Query) -> StructType | None:
    """Return the columns of a query's root if it is a source of a topic, else None."""
    source = model.source(query.root)
    if source is None or not isinstance(source.origin, TopicSource):
        return None
    return stand_in(spark, source).schema


def _leading_to(model: PipelineModel, root: str) -> PipelineModel:
    """Return the model with only those sources and steps of which the root's rows are made."""
    needed = _ancestors(model, root)
    sources = tuple(each for each in model.sources if each.name in needed)
    return replace(model, sources=sources, steps=tuple(each for each in model.steps if each.name in needed))


def _streams(spark: SparkSession, model: PipelineModel, ranges: Mapping[str, Range] | None) -> _Streams:
    """Return the streams of all nodes; without ranges stand-ins, which are only good for analysis."""
    streams = _Streams({}, {}, {})
    for source in model.sources:
        if not is_stream(source):
            streams.frames[source.name] = read_batch(spark, model, source, Range())
            continue
        part = (ranges or {}).get(source.name, Range())
        decoded = stand_in(spark, source) if ranges is None else read_stream(spark, model, source, part)
        streams.decoded[source.name] = decoded
        streams.frames[source.name], _failed = split_errors(decoded)
        streams.roots[source.name] = source.name
    for step in model.steps:
        _add_step(spark, step, streams)
    return streams


def _add_step(spark: SparkSession, step: Step, streams: _Streams) -> None:
    rows = apply_step(spark, step, streams.frames)
    roots = {streams.roots[each] for each in step.inputs if each in streams.roots}
    kept = sum(_stateful_count(streams.frames[each]) for each in step.inputs)
    if len(roots) > 1 or (roots and _stateful_count(rows) > kept):
        streams.roots[step.name] = step.name
    elif roots:
        (streams.roots[step.name],) = roots
    check_rows(step, rows)  # has Spark analyse all conditions
    streams.frames[step.name] = enforce(step, rows)


def _stateful_count(rows: DataFrame) -> int:
    """Return how many operators of the rows' plan keep state."""
    return sum(_is_stateful(each) for each in _operators(_plan(rows)))


def _is_stateful(operator: Any) -> bool:
    if operator.nodeName() not in STATEFUL or not operator.isStreaming():
        return False
    return operator.nodeName() != "Join" or all(each.isStreaming() for each in _children(operator))


def _output_mode(rows: DataFrame) -> str:
    """Return update for an aggregation that no watermark ever finishes, else append."""
    names = {each.nodeName() for each in _operators(_plan(rows)) if each.isStreaming()}
    return "update" if names & AGGREGATIONS and WATERMARK not in names else "append"


def _plan(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def _operators(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _operators(child)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(number) for number in range(children.size())]


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
