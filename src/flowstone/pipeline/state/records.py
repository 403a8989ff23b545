"""The records of a pipeline's state: their fields, their JSON form, and their keys.

A key is `<pipeline>/<kind>` or `<pipeline>/<kind>/<id>`, each part percent-encoded. A value is a JSON object with the
field `version`. A reader ignores fields that it does not know. A value of a newer version, or one that cannot be read,
is reported and left as it is.

Times are milliseconds since 1970. The class of a kind and the limits of the rings are declared at the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, unquote

VERSION = 1
RUNS_MAX = 50
ERRORS_MAX = 20
ERROR_CHARACTERS_MAX = 2000
PURPOSE_RUN = "run"

_EMPTY: Mapping[str, Any] = MappingProxyType({})

T = TypeVar("T", bound="StateRecord")


class Kind(StrEnum):
    DECLARATION = "declaration"
    POSITIONS = "positions"
    CHECKPOINT = "checkpoint"
    POINT = "point"
    LEASE = "lease"
    RUN = "run"
    PROGRESS = "progress"
    ERROR = "error"
    LETTERS = "letters"
    REPLAY = "replay"


class UnreadableRecord(Exception):
    """A value that this release cannot read; the message is the reason, as the end of a sentence."""


@dataclass(frozen=True)
class StateRecord:
    """The base of all records: every field is JSON, or a class of this module that `_NESTED` names."""


@dataclass(frozen=True)
class DeclaredNode(StateRecord):
    """A source, step or sink as it was declared. `parts` are the fingerprints of its aspects, by name."""

    kind: str
    inputs: tuple[str, ...]
    parts: Mapping[str, str]


@dataclass(frozen=True)
class DeclaredQuery(StateRecord):
    """A streaming query: the sources that it reads, in order, and its steps that keep state."""

    sources: tuple[str, ...]
    stateful: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declaration(StateRecord):
    """The stored declaration of a run, which `plan` compares: fingerprints of all nodes and of what checkpoints depend
    on.
    """

    spec_hash: str
    nodes: Mapping[str, DeclaredNode]
    queries: Mapping[str, DeclaredQuery] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)  # settings of Spark that a checkpoint depends on
    flowstone: str = ""
    spark: str = ""
    stored_at_ms: int = 0


@dataclass(frozen=True)
class Positions(StateRecord):
    """The start positions of a query's sources: JSON for the Spark source's startingOffsets, by source."""

    sources: Mapping[str, str]
    stored_at_ms: int = 0


@dataclass(frozen=True)
class Checkpoint(StateRecord):
    """The directory of a query's checkpoint; a reset gives the query another one."""

    path: str
    id: str
    since_ms: int


@dataclass(frozen=True)
class Point(StateRecord):
    """A saved state of some queries, to which a reset can go back."""

    name: str
    saved_at_ms: int
    reason: str
    checkpoints: Mapping[str, Checkpoint]
    positions: Mapping[str, Positions]
    group_offsets: Mapping[str, Mapping[str, Mapping[str, int]]]  # by query, topic and partition
    resumed_at_ms: int = 0  # its checkpoints are in use again since then; 0: they are as they were saved


@dataclass(frozen=True)
class Lease(StateRecord):
    """The claim of one run to be the only one. `claim_offset` is -1 in the first record, whose own offset counts."""

    run_id: str
    host: str
    pid: int
    since_ms: int
    lock: str = ""  # identity of the lock file that the run's process holds
    purpose: str = PURPOSE_RUN  # or the command that changes the state meanwhile
    claim_offset: int = -1
    is_granted: bool = False
    heartbeat_ms: int = 0  # the record's timestamp, set by the reader


@dataclass(frozen=True)
class RunRecord(StateRecord):
    """One run. `ended_at_ms` is 0 while it runs, and stays 0 if it died without saying so."""

    number: int
    run_id: str
    host: str
    pid: int
    started_at_ms: int
    spec_hash: str = ""
    master: str = ""
    ended_at_ms: int = 0
    reason: str = ""
    restarts: int = 0
    rows_in: int = 0
    rows_out: int = 0
    letters: int = 0


@dataclass(frozen=True)
class Progress(StateRecord):
    """The progress of a query in its current or last run; the counts are sums over the run."""

    query: str
    run_id: str
    batch_number: int
    at_ms: int
    batches: int
    rows_in: int
    rows_out: Mapping[str, int]
    letters: int
    expectations: Mapping[str, int]  # rows that did not meet an expectation, by `<node>.<expectation>`
    duration_ms: int  # of the last micro-batch
    rows_per_s: float  # read, over the last seconds


@dataclass(frozen=True)
class ErrorRecord(StateRecord):
    """A failure of a query. `restart_in_s` is -1 if the query was not restarted."""

    number: int
    query: str
    run_id: str
    at_ms: int
    message: str
    restart_in_s: float = -1.0


@dataclass(frozen=True)
class LettersRecord(StateRecord):
    """The dead letters that were retried or dropped: ranges of offsets as [first, last], by partition of the letters
    topic.

    `pending` are those of a retry that has begun, and whose number is `retries`.
    """

    topic: str
    retries: int = 0
    to_source: bool = False  # how the pending ones are retried
    pending: Mapping[str, Any] = field(default_factory=dict)
    retried: Mapping[str, Any] = field(default_factory=dict)
    dropped: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayRecord(StateRecord):
    """The last replay: its pinned ranges as [from, to] in the Spark source's JSON, by source."""

    id: str
    ranges: Mapping[str, Any]
    offsets_max: int  # of a partition, in one chunk
    aside: str = ""
    spec_hash: str = ""
    started_at_ms: int = 0
    ended_at_ms: int = 0  # 0: it goes on, or was interrupted


_NESTED: Mapping[tuple[type, str], type[StateRecord]] = {
    (Declaration, "nodes"): DeclaredNode,
    (Declaration, "queries"): DeclaredQuery,
    (Point, "checkpoints"): Checkpoint,
    (Point, "positions"): Positions,
}

CLASSES: Mapping[Kind, type[StateRecord]] = {
    Kind.DECLARATION: Declaration,
    Kind.POSITIONS: Positions,
    Kind.CHECKPOINT: Checkpoint,
    Kind.POINT: Point,
    Kind.LEASE: Lease,
    Kind.RUN: RunRecord,
    Kind.PROGRESS: Progress,
    Kind.ERROR: ErrorRecord,
    Kind.LETTERS: LettersRecord,
    Kind.REPLAY: ReplayRecord,
}


def key_of(pipeline: str, kind: Kind, id: str = "") -> str:
    parts = [pipeline, kind, id] if id else [pipeline, kind]
    return "/".join(quote(each, safe="") for each in parts)


def split_key(key: str) -> tuple[str, str, str]:
    """Return the pipeline, kind and id of a key; the kind may be one that this release does not know."""
    pipeline, _, rest = key.partition("/")
    kind, _, id = rest.partition("/")
    return unquote(pipeline), unquote(kind), unquote(id)


def encode(record: StateRecord) -> bytes:
    return json.dumps({"version": VERSION, **asdict(record)}, separators=(",", ":")).encode()


def decode(class_: type[T], value: bytes) -> T:
    """Return the record of a value. Raises UnreadableRecord if it is newer than this release, or malformed."""
    try:
        document = json.loads(value)
    except ValueError as error:
        raise UnreadableRecord("is not JSON") from error
    version = document.get("version") if isinstance(document, dict) else None
    if isinstance(version, bool) or not isinstance(version, int):
        raise UnreadableRecord("has no version")
    if version > VERSION:
        raise UnreadableRecord(f"has version {version}, and this release reads versions up to {VERSION}")
    return _record(class_, document)


def _record(class_: type[T], document: Any) -> T:
    if not isinstance(document, dict):
        raise UnreadableRecord("is not a JSON object")
    values = {}
    for each in fields(class_):
        if each.name in document:
            values[each.name] = _field(class_, each.name, str(each.type), document[each.name])
    try:
        return class_(**values)
    except TypeError as error:
        raise UnreadableRecord(f"lacks fields ({error})") from None


def _field(class_: type[StateRecord], name: str, type_name: str, value: Any) -> Any:
    nested = _NESTED.get((class_, name))
    if nested is not None:
        if not isinstance(value, dict):
            raise UnreadableRecord(f"has no JSON object as {name}")
        return {key: _record(nested, each) for key, each in value.items()}
    if not isinstance(value, _JSON_TYPES[type_name.partition("[")[0]]) or (
        isinstance(value, bool) != (type_name == "bool")
    ):
        raise UnreadableRecord(f"has {json.dumps(value)[:40]} as {name}")
    return tuple(value) if isinstance(value, list) else value


_JSON_TYPES: Mapping[str, Any] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "tuple": list,
    "Mapping": dict,
}
