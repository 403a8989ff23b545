"""`reset`: sets the position at which queries start again, and saves their previous position under a name.

A reset changes only the state: it gives each query a new checkpoint and new start positions. The saved point has the
old ones, so that a reset to it undoes the reset. The rows of records that are read again are written again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flowstone.client import ClientError, Cluster
from flowstone.pipeline.engine.starting import position_json
from flowstone.pipeline.errors import PipelineError, TryLater
from flowstone.pipeline.model import PipelineModel, Source
from flowstone.pipeline.operations.ranges import Offsets, from_json, ids_from_json, ids_of_topics, is_position, resolve
from flowstone.pipeline.state import Checkpoint, Kind, PipelineState, Point, Positions, StateStore, new_checkpoint
from flowstone.pipeline.state.records import StateRecord
from flowstone.pipeline.state.store import POINTS_MAX
from flowstone.types import TopicPartition

DEADLINE_S = 15.0
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,100}")


@dataclass(frozen=True)
class QueryReset:
    """The effect of a reset on one query. A negative number of records is skipped."""

    query: str
    positions: Mapping[str, str]
    checkpoint: Checkpoint
    current: Offsets
    target: Offsets

    @property
    def records_again(self) -> int:
        return sum(at - self.target.get(each, at) for each, at in self.current.items())


@dataclass(frozen=True)
class Reset:
    saved: Point
    queries: tuple[QueryReset, ...]
    resumed: Point | None = None  # the point whose checkpoints are used again


def plan_reset(
    model: PipelineModel, store: StateStore, to: str, queries: Sequence[str] = (), save_as: str = ""
) -> Reset:
    """Return what a reset would do. Raises PipelineError if the pipeline has never run, or `to` is unknown."""
    state = store.load()
    names = sorted({*state.positions, *state.checkpoints})
    if not names:
        raise PipelineError(f"{model.name} has never run: where it starts is declared with `starting`")
    unknown = sorted(set(queries) - set(names))
    if unknown:
        raise PipelineError(f"there is no query {unknown[0]}; there are {', '.join(names)}")
    wanted = tuple(queries) or tuple(names)
    currents = {name: _current(model, state, name) for name in wanted}
    saved = _point(state, wanted, currents, to, save_as)
    point = next((each for each in state.points if each.name == to), None)
    if point is None and not is_position(to):
        known = ", ".join(each.name for each in state.points) or "none"
        raise PipelineError(
            f"{to} is neither a saved point ({known}) nor a position: earliest, latest, a time such as "
            "2026-01-31T12:00:00Z, or offsets as JSON"
        )
    if point is None:
        return Reset(saved, tuple(_to_position(model, state, name, to, currents[name]) for name in wanted))
    missing = sorted(set(wanted) - set(point.positions))
    if missing and queries:
        raise PipelineError(f"the point {to} has no query {missing[0]}")
    chosen = [name for name in wanted if name in point.positions]
    return Reset(saved, tuple(_to_point(model, point, name, currents[name]) for name in chosen), point)


def apply(model: PipelineModel, store: StateStore, reset: Reset) -> None:
    """Save the point, and store the new start positions of the queries. Everything is written together."""
    records: dict[tuple[Kind, str], StateRecord | None] = {(Kind.POINT, reset.saved.name): reset.saved}
    points = store.load().points
    for point in points[: max(0, len(points) + 1 - POINTS_MAX)]:
        records[Kind.POINT, point.name] = None
    if reset.resumed is not None:
        records[Kind.POINT, reset.resumed.name] = replace(reset.resumed, resumed_at_ms=_now_ms())
    for each in reset.queries:
        records[Kind.POSITIONS, each.query] = Positions(dict(each.positions), _now_ms())
        records[Kind.CHECKPOINT, each.query] = each.checkpoint
    store.write(records)
    try:
        with Cluster(model.bootstrap, client_id="flowstone-pipeline", deadline_s=DEADLINE_S) as cluster:
            for each in reset.queries:
                cluster.commit(each.query, each.target)
    except ClientError as error:
        raise TryLater(f"the reset is done, but the lag of its groups shows the old offsets: {error}") from error


def _current(model: PipelineModel, state: PipelineState, query: str) -> Offsets:
    """Return the offset up to which a query has finished each partition."""
    positions = state.positions.get(query)
    starts = {
        each: offset
        for text in (positions.sources.values() if positions else ())
        for each, offset in from_json(text).items()
    }
    try:
        with Cluster(model.bootstrap, client_id="flowstone-pipeline", deadline_s=DEADLINE_S) as cluster:
            return {**starts, **cluster.committed(query, starts)} if starts else {}
    except ClientError as error:
        raise TryLater(f"bootstrap: {error}; check that the broker is running") from error


def _point(
    state: PipelineState, queries: Sequence[str], currents: Mapping[str, Offsets], to: str, save_as: str
) -> Point:
    name = save_as or time.strftime("before-reset-%Y%m%dT%H%M%SZ", time.gmtime())
    if not _NAME.fullmatch(name) or is_position(name):
        raise PipelineError(f"{name} is no name for a point: letters, digits and . _ : - and no position")
    if name in {each.name for each in state.points}:
        raise PipelineError(f"there is a point {name} already; save this one with another name (--save-as)")
    return Point(
        name,
        _now_ms(),
        f"reset to {to}",
        {each: state.checkpoints[each] for each in queries if each in state.checkpoints},
        {each: state.positions[each] for each in queries if each in state.positions},
        {each: _by_topic(offsets) for each, offsets in currents.items()},
    )


def _by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for each, offset in sorted(offsets.items()):
        found.setdefault(each.topic, {})[str(each.partition)] = offset
    return found


def _to_position(model: PipelineModel, state: PipelineState, query: str, to: str, current: Offsets) -> QueryReset:
    known = state.positions.get(query)
    sources = _sources(model, tuple(known.sources) if known else ())
    ids = ids_of_topics(model, sources)
    found = resolve(model, sources, to)
    target = {each: offset for offsets in found.values() for each, offset in offsets.items()}
    positions = {name: position_json(offsets, ids[name]) for name, offsets in found.items()}
    return QueryReset(query, positions, new_checkpoint(query, model.checkpoint_root), current, target)


def _sources(model: PipelineModel, names: Sequence[str]) -> tuple[Source, ...]:
    found = tuple(each for each in model.sources if each.name in names)
    gone = sorted(set(names) - {each.name for each in found})
    if gone:
        raise PipelineError(
            f"the pipeline has no source {gone[0]} any more; run it once as it is declared now, or reset with --query"
        )
    return found


def _to_point(model: PipelineModel, point: Point, query: str, current: Offsets) -> QueryReset:
    """Return a query's way back to a point: with its checkpoint, unless that has gone on since."""
    target = {
        TopicPartition(topic, int(number)): offset
        for topic, offsets in point.group_offsets.get(query, {}).items()
        for number, offset in offsets.items()
    }
    checkpoint = point.checkpoints.get(query)
    if checkpoint is not None and not point.resumed_at_ms:
        return QueryReset(query, dict(point.positions[query].sources), checkpoint, current, target)
    positions = {}
    for name, text in point.positions[query].sources.items():
        offsets = {each: target.get(each, offset) for each, offset in from_json(text).items()}
        positions[name] = position_json(offsets, ids_from_json(text))
    return QueryReset(query, positions, new_checkpoint(query, model.checkpoint_root), current, target)


def _now_ms() -> int:
    return int(time.time() * 1000)
