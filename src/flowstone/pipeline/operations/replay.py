"""`replay`: processes a range of records with the current pipeline, into its sinks or into other topics and tables.

The rows are written in addition to those of the stream. The replay itself is exactly once: its pinned ranges are stored
first, each chunk is a transaction with the replay's id and the chunk's number, and a replay that was interrupted is
continued with the same chunks, of which those that were written are not written again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from flowstone.pipeline.engine.declaring import spec_hash
from flowstone.pipeline.engine.outputs import MicroBatchId, write_all
from flowstone.pipeline.engine.queries import Query, plan_queries
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import PipelineModel, Sink, TableSink, TopicSink
from flowstone.pipeline.operations import chunks
from flowstone.pipeline.operations.ranges import Pinned, from_json, ids_from_json
from flowstone.pipeline.state import Kind, ReplayRecord, StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Replayed:
    id: str
    chunks: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)  # by sink
    letters: int = 0


def start(
    model: PipelineModel, store: StateStore, ranges: Mapping[str, Pinned], aside: str, offsets_max: int
) -> ReplayRecord:
    """Store a new replay. Raises PipelineError if the last one was interrupted."""
    last = _last(store)
    if last is not None and not last.ended_at_ms:
        raise PipelineError(
            f"the replay {last.id} was interrupted: finish it with `replay --continue`, or give it up with "
            "`replay --abandon`"
        )
    id = f"replay-{uuid4().hex[:12]}"
    documents = {name: [each.as_range().starting, each.as_range().ending] for name, each in ranges.items()}
    record = ReplayRecord(id, documents, offsets_max, aside, spec_hash(model), _now_ms())
    store.write({(Kind.REPLAY, ""): record})
    return record


def interrupted(model: PipelineModel, store: StateStore) -> ReplayRecord:
    """Return the replay that was interrupted. Raises PipelineError if there is none, or the code is another now."""
    last = _last(store)
    if last is None or last.ended_at_ms:
        raise PipelineError("no replay was interrupted")
    if last.spec_hash != spec_hash(model):
        raise PipelineError(
            f"the pipeline has changed since the replay {last.id} began, so it would mix the results of both "
            "versions: restore the old version, or end the replay with `replay --abandon`"
        )
    return last


def abandon(store: StateStore) -> str:
    """Mark the interrupted replay as ended, keep the rows that it has written, and return its id."""
    last = _last(store)
    if last is None or last.ended_at_ms:
        raise PipelineError("no replay was interrupted")
    store.write({(Kind.REPLAY, ""): replace(last, ended_at_ms=_now_ms())})
    return last.id


def replay(spark: SparkSession, model: PipelineModel, store: StateStore, record: ReplayRecord) -> Replayed:
    """Process all chunks of a replay. Raises PipelineError before the first one if a source cannot be read again."""
    target = aside_of(model, record.aside) if record.aside else model
    ranges = {
        name: Pinned(from_json(start), from_json(end), ids_from_json(start))
        for name, (start, end) in record.ranges.items()
    }
    queries = [each for each in plan_queries(spark, target) if chunks.can_be_read_again(each)]
    if not queries:
        raise PipelineError("no query of the pipeline reads topics only, and files cannot be replayed")
    done = Replayed(record.id)
    for query in queries:
        for number, part in enumerate(chunks.parts(query, ranges, record.offsets_max)):
            _chunk(spark, target, query, part, number, done)
    store.write({(Kind.REPLAY, ""): replace(record, ended_at_ms=_now_ms())})
    return done


def _chunk(
    spark: SparkSession, model: PipelineModel, query: Query, part: Mapping[str, Pinned], number: int, done: Replayed
) -> None:
    evaluation = chunks.evaluate(spark, model, query, part)
    outputs = {each.name: evaluation.frames[each.input] for each in query.sinks}
    counts = evaluation.count(outputs)
    write_all(
        model, query, evaluation, counts, MicroBatchId(f"{query.name}.replay", f"{done.id}/{query.name}", number, {})
    )
    done.chunks += 1
    done.letters += counts.letters
    for name in outputs:
        done.rows_out[name] = done.rows_out.get(name, 0) + counts.rows.get(name, 0)


def aside_of(model: PipelineModel, suffix: str) -> PipelineModel:
    """Return the pipeline with sinks of other names: topics and tables get the suffix."""
    return replace(
        model,
        sinks=tuple(_aside(each, suffix) for each in model.sinks),
        dead_letters=f"{model.letters_topic}{suffix}",
    )


def _aside(sink: Sink, suffix: str) -> Sink:
    target = sink.target
    if isinstance(target, TopicSink):
        return replace(sink, target=replace(target, topic=f"{target.topic}{suffix}"))
    if isinstance(target, TableSink):
        return replace(sink, target=replace(target, path=f"{target.path.rstrip('/')}{suffix}"))
    return sink


def _last(store: StateStore) -> ReplayRecord | None:
    state = store.load()
    state.check_readable(Kind.REPLAY)
    return state.replay


def _now_ms() -> int:
    return int(time.time() * 1000)
