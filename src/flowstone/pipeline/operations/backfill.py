"""`backfill`: recomputes a table with the current code at another path, then replaces the old table.

The pipeline must not be running. The new table has the rows of all records from the beginning up to where the query
has finished, so that the next run goes on from there without a gap and without a row twice. Readers see the old table
until the swap, which is two renames of directories; the old table stays beside the new one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flowstone.pipeline.engine import checkpoints
from flowstone.pipeline.engine.outputs import MicroBatchId, write_table
from flowstone.pipeline.engine.queries import Query, plan_queries
from flowstone.pipeline.engine.running import read_ends, read_topic_ids
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import PipelineModel, Sink, TableSink
from flowstone.pipeline.operations import chunks
from flowstone.pipeline.operations.ranges import Offsets, Pinned, from_json, ids_from_json, resolve
from flowstone.pipeline.state import PipelineState
from flowstone.pipeline.tables.storage import location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIDE, BEFORE = ".backfill-", ".before-"


@dataclass(frozen=True)
class Backfilled:
    sink: str
    rows: int
    path: str
    before: str  # where the old table is now; empty if there was none


@dataclass(frozen=True)
class _Work:
    query: Query
    sinks: tuple[Sink, ...]
    ranges: dict[str, Pinned]


def backfill(
    spark: SparkSession, model: PipelineModel, state: PipelineState, names: Sequence[str], start: str, offsets_max: int
) -> list[Backfilled]:
    """Recompute tables and replace the old ones. Raises PipelineError before anything is written if that is not
    possible.
    """
    sinks = chosen(model, names)
    for sink in sinks:
        finish_swap(sink)
    queries = plan_queries(spark, model, state.query_names)
    work = [_work(spark, model, state, query, sinks, start) for query in queries]
    id = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    rows: Counter[str] = Counter()
    for each in filter(lambda each: each.sinks, work):
        rows.update(_compute(spark, model, each, id, offsets_max))
    return [_swapped(sink, rows[sink.name], id) for sink in sinks]


def chosen(model: PipelineModel, names: Sequence[str]) -> tuple[Sink, ...]:
    """Return the table sinks with these names, or all. Raises PipelineError for one that cannot be swapped."""
    unknown = sorted(set(names) - {each.name for each in model.sinks})
    if unknown:
        raise PipelineError(f"there is no sink {unknown[0]}; there are {', '.join(each.name for each in model.sinks)}")
    found = tuple(
        each for each in model.sinks if each.name in names or (not names and isinstance(each.target, TableSink))
    )
    for each in found:
        target = each.target
        if not isinstance(target, TableSink) or target.kind == "iceberg" or not location(target.path).is_local:
            raise PipelineError(
                f"sink {each.name}: a backfill swaps directories, which works for Delta and Parquet tables on a file "
                "system; for others use `replay --aside` into another table or topic, and have its readers change",
                each.declared_at,
            )
    if not found:
        raise PipelineError("the pipeline has no table to recompute; use `replay --aside` for topics")
    return found


def _work(
    spark: SparkSession, model: PipelineModel, state: PipelineState, query: Query, sinks: Sequence[Sink], start: str
) -> _Work:
    mine = tuple(each for each in query.sinks if each in sinks)
    if not mine:
        return _Work(query, (), {})
    if query.root != query.sources[0].name or not chunks.can_be_read_again(query):
        raise PipelineError(
            f"sink {mine[0].name}: its step {query.root} keeps state, or reads files, and goes on with what it has; "
            "declare the table with another path and use `reset --to earliest`",
            mine[0].declared_at,
        )
    return _Work(query, mine, _ranges(spark, model, state, query, start))


def _ranges(
    spark: SparkSession, model: PipelineModel, state: PipelineState, query: Query, start: str
) -> dict[str, Pinned]:
    """Return the records up to where the query has finished."""
    positions, checkpoint = state.positions.get(query.name), state.checkpoints.get(query.name)
    if positions is None or checkpoint is None:
        raise PipelineError(f"query {query.name} has never run: its first run computes everything")
    number = checkpoints.last_commit(spark, checkpoint.path)
    log = f"{checkpoint.path}/offsets/{number}"
    done, done_ids = (read_ends(spark, log), read_topic_ids(spark, log)) if number is not None else ({}, {})
    starts = resolve(model, query.sources, start)
    found = {}
    for name, text in positions.sources.items():
        ends: Offsets = {each: done.get(f"{each.topic}-{each.partition}", at) for each, at in from_json(text).items()}
        begins = {each: min(starts.get(name, {}).get(each, 0), end) for each, end in ends.items()}
        ids = ids_from_json(text)
        found[name] = Pinned(begins, ends, {topic: done_ids.get(topic, topic_id) for topic, topic_id in ids.items()})
    return found


def _compute(spark: SparkSession, model: PipelineModel, work: _Work, id: str, offsets_max: int) -> dict[str, int]:
    """Write the rows of a query into the tables on the side, and return their numbers."""
    rows = dict.fromkeys((each.name for each in work.sinks), 0)
    for number, part in enumerate(chunks.parts(work.query, work.ranges, offsets_max)):
        evaluation = chunks.evaluate(spark, model, work.query, part)
        outputs = {each.name: evaluation.frames[each.input] for each in work.sinks}
        counts = evaluation.count(outputs)
        ends = {
            f"{each.topic}-{each.partition}": end for pinned in part.values() for each, end in pinned.ending.items()
        }
        batch = MicroBatchId(f"{work.query.name}.backfill", f"backfill-{id}/{work.query.name}", number, ends)
        for each in work.sinks:
            write_table(_on_side(each, id), outputs[each.name], batch)
            rows[each.name] += counts.rows.get(each.name, 0)
    return rows


def _on_side(sink: Sink, id: str) -> Sink:
    assert isinstance(sink.target, TableSink)
    return replace(sink, target=replace(sink.target, path=f"{_place(sink)}{SIDE}{id}"))


def _place(sink: Sink) -> str:
    assert isinstance(sink.target, TableSink)
    return location(sink.target.path).uri


def _swapped(sink: Sink, rows: int, id: str) -> Backfilled:
    path = Path(_place(sink))
    side, before = Path(f"{path}{SIDE}{id}"), Path(f"{path}{BEFORE}{id}")
    if not side.exists():  # no row at all
        return Backfilled(sink.name, rows, str(path), "")
    was_there = path.exists()
    if was_there:
        path.rename(before)
    side.rename(path)
    return Backfilled(sink.name, rows, str(path), str(before) if was_there else "")


def finish_swap(sink: Sink) -> None:
    """Complete the swap of a backfill that was killed between its two renames."""
    path = Path(_place(sink))
    if path.exists():
        return
    for before in sorted(path.parent.glob(f"{path.name}{BEFORE}*"), reverse=True):
        side = Path(f"{path}{SIDE}{before.name.rpartition(BEFORE)[2]}")
        if side.exists():
            side.rename(path)
            return
