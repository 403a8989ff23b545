"""`PipelineState`: everything that the topic holds about one pipeline, as one value, and how it is made of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.state.lease import DEAD_AFTER_S, Leases
from flowstone.pipeline.state.records import (
    CLASSES,
    Checkpoint,
    Declaration,
    ErrorRecord,
    Kind,
    Lease,
    LettersRecord,
    Point,
    Positions,
    Progress,
    ReplayRecord,
    RunRecord,
    StateRecord,
    UnreadableRecord,
    decode,
    split_key,
)
from flowstone.pipeline.state.topic import STATE_TOPIC, Entry


@dataclass(frozen=True)
class PipelineState:
    pipeline: str
    declaration: Declaration | None = None
    positions: Mapping[str, Positions] = field(default_factory=dict)  # by query
    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)  # by query
    points: tuple[Point, ...] = ()  # the oldest first
    leases: tuple[Lease, ...] = ()
    runs: tuple[RunRecord, ...] = ()  # the newest first
    progress: Mapping[str, Progress] = field(default_factory=dict)  # by query
    errors: tuple[ErrorRecord, ...] = ()  # the newest first
    letters: Mapping[str, LettersRecord] = field(default_factory=dict)  # by topic
    replay: ReplayRecord | None = None  # the last one
    # Why values cannot be read, by kind and id: they are newer than this release, or damaged.
    unreadable: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return self == PipelineState(self.pipeline)

    @property
    def query_names(self) -> frozenset[str]:
        """The names of the queries of the last run. Raises PipelineError if they cannot be read."""
        self.check_readable(Kind.DECLARATION)
        return frozenset(self.declaration.queries) if self.declaration is not None else frozenset()

    def live(self, now_ms: int) -> Lease | None:
        """Return the granted lease whose heartbeat is recent at that time, or None."""
        alive = [each for each in self.leases if now_ms - each.heartbeat_ms < DEAD_AFTER_S * 1000]
        return max((each for each in alive if each.is_granted), key=lambda each: each.claim_offset, default=None)

    def check_readable(self, kind: Kind, id: str = "") -> None:
        """Raise PipelineError if the value exists and cannot be read: to go on without it could lose records."""
        reason = self.unreadable.get((kind, id))
        if reason is not None:
            about = f"{kind} {id}".strip()
            raise PipelineError(
                f"the state of pipeline {self.pipeline} in topic {STATE_TOPIC}: {about} {reason}; use the release of "
                "Flowstone that wrote it, or `flowstone pipeline reset`"
            )


class StateReader:
    """The newest value of each key of one pipeline. Values are decoded when they are asked for."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.leases = Leases(pipeline)
        self._entries: dict[tuple[str, str], Entry] = {}

    def apply(self, entries: Iterable[Entry]) -> None:
        mine = [each for each in entries if split_key(each.key)[0] == self.pipeline]
        self.leases.apply(mine)
        for each in mine:
            _, kind, id = split_key(each.key)
            if each.value is None:
                self._entries.pop((kind, id), None)
            else:
                self._entries[kind, id] = each

    def state(self) -> PipelineState:
        found: dict[Kind, dict[str, StateRecord]] = {kind: {} for kind in Kind}
        unreadable = {}
        for (kind_name, id), entry in self._entries.items():
            if kind_name not in CLASSES:
                continue
            kind = Kind(kind_name)
            assert entry.value is not None
            try:
                found[kind][id] = decode(CLASSES[kind], entry.value)
            except UnreadableRecord as error:
                unreadable[kind_name, id] = f"(offset {entry.offset}) {error}"
        return _build(self.pipeline, found, tuple(self.leases.by_run.values()), unreadable)


def _build(
    pipeline: str,
    found: Mapping[Kind, Mapping[str, StateRecord]],
    leases: tuple[Lease, ...],
    unreadable: Mapping[tuple[str, str], str],
) -> PipelineState:
    declaration, replay = found[Kind.DECLARATION].get(""), found[Kind.REPLAY].get("")
    points = [each for each in found[Kind.POINT].values() if isinstance(each, Point)]
    runs = [each for each in found[Kind.RUN].values() if isinstance(each, RunRecord)]
    errors = [each for each in found[Kind.ERROR].values() if isinstance(each, ErrorRecord)]
    return PipelineState(
        pipeline=pipeline,
        declaration=declaration if isinstance(declaration, Declaration) else None,
        positions={id: each for id, each in found[Kind.POSITIONS].items() if isinstance(each, Positions)},
        checkpoints={id: each for id, each in found[Kind.CHECKPOINT].items() if isinstance(each, Checkpoint)},
        points=tuple(sorted(points, key=lambda each: (each.saved_at_ms, each.name))),
        leases=leases,
        runs=tuple(sorted(runs, key=lambda each: -each.number)),
        progress={id: each for id, each in sorted(found[Kind.PROGRESS].items()) if isinstance(each, Progress)},
        errors=tuple(sorted(errors, key=lambda each: -each.number)),
        letters={id: each for id, each in found[Kind.LETTERS].items() if isinstance(each, LettersRecord)},
        replay=replay if isinstance(replay, ReplayRecord) else None,
        unreadable=unreadable,
    )
