"""The model of a pipeline: what `pipeline.py` and `pipeline.yaml` both describe, and what all commands work on.

A pipeline is a graph of named nodes. Sources read topics, tables or files. A step turns the DataFrames of its inputs
into another one. A sink writes the rows of one node. Names are unique over sources, steps and sinks.

The model holds no Spark object and no connection, so that it can be compared, hashed and stored. `declared_at` is where
a node was declared, for error messages; it does not count in comparisons.

The DataFrame of a topic source has the columns of the decoded value, followed by RECORD: a struct of the record's
`topic`, `partition`, `offset`, `timestamp`, `key`, `value` and `headers`. Sinks do not write RECORD. A step that keeps
it (as `SELECT *` does) lets a diverted row be stored as a dead letter with its original bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.errors import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD = "_record"
# A struct of `stage`, `class` and `message` in rows that could not be decoded, NULL in all others. Only the rows
# between decoding and the first step have it.
ERROR = "_error"

LETTERS_SUFFIX = "-letters"
CHECKPOINTS = ".flowstone/checkpoints"

# A row of a test case, as JSON or YAML has it.
Row = Mapping[str, Any]


class FormatKind(StrEnum):
    RAW = "raw"  # one binary column `value`
    TEXT = "text"  # one string column `value`
    JSON = "json"
    CSV = "csv"
    AVRO = "avro"
    PROTOBUF = "protobuf"


@dataclass(frozen=True)
class Format:
    """A format, which converts the bytes of a record's value (or key) to columns and back."""

    kind: FormatKind
    # JSON and CSV: columns as Spark's DDL, "id string, total double". Avro: a schema in JSON, or a file's path.
    # Protobuf: the path of a descriptor set. Empty: the schema comes from the registry; for a sink, from the columns.
    schema: str = ""
    message: str = ""  # Protobuf: the full name of the message
    registry: str = ""  # URL of a schema registry; records then have the Confluent wire format
    options: Mapping[str, str] = field(default_factory=dict)  # CSV: sep, quote, ... as Spark names them


@dataclass(frozen=True)
class TopicSource:
    """Records of topics. `starting` is "earliest", "latest", or a time in ISO 8601."""

    topics: tuple[str, ...]
    value: Format
    pattern: str = ""  # instead of topics: a regular expression
    starting: str = "earliest"
    records_per_batch_max: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # further options of the Spark source


@dataclass(frozen=True)
class TableSource:
    """The rows of a table, for lookups, read again for each micro-batch. `kind` is delta, iceberg or parquet."""

    kind: str
    path: str  # of the table; Iceberg: namespace.table
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileSource:
    """Files that are added to a directory. `kind` is json, csv, parquet or text; `schema` is Spark's DDL."""

    kind: str
    path: str
    schema: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    name: str
    origin: TopicSource | TableSource | FileSource
    declared_at: Place | None = field(default=None, compare=False)


class Action(StrEnum):
    """The action for rows that do not meet an expectation. Each such row is counted."""

    KEEP = "keep"  # it stays
    DROP = "drop"
    DIVERT = "divert"  # it becomes a dead letter
    FAIL = "fail"  # the micro-batch fails; nothing of it is written


@dataclass(frozen=True)
class Expectation:
    """A condition in SQL that each row of a node should meet. NULL counts as not met."""

    name: str
    condition: str
    action: Action = Action.KEEP
    declared_at: Place | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Step:
    """A transformation: a function of DataFrames, or SQL over views that are named like its inputs.

    `text` is the SQL, or the source text of the function: what `plan` compares to find changed steps.
    """

    name: str
    inputs: tuple[str, ...]
    text: str
    function: Callable[..., DataFrame] | None = field(default=None, compare=False)  # None: `text` is SQL
    expectations: tuple[Expectation, ...] = ()
    declared_at: Place | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TopicSink:
    """A sink that writes rows to a topic. `key` is the column of the record's key; the others become its value."""

    topic: str
    value: Format
    key: str = ""
    options: Mapping[str, str] = field(default_factory=dict)  # further options of the Spark sink


@dataclass(frozen=True)
class TableSink:
    """A table of a `kind` (delta, iceberg, parquet). With `keys`, new rows replace those of the same keys."""

    kind: str
    path: str
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    compact_every_s: float = 0.0  # how often small files are compacted while the pipeline runs; 0: never
    delete_when: str = ""  # with keys: a condition in SQL; rows that meet it delete what has their keys
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsoleSink:
    rows_max: int = 20


@dataclass(frozen=True)
class Sink:
    name: str
    input: str
    target: TopicSink | TableSink | ConsoleSink
    declared_at: Place | None = field(default=None, compare=False)


class TriggerKind(StrEnum):
    CONTINUOUS = "continuous"  # the next micro-batch begins when the one before has ended
    INTERVAL = "interval"
    ONCE = "once"  # everything that is there, then the run ends


@dataclass(frozen=True)
class Trigger:
    kind: TriggerKind = TriggerKind.CONTINUOUS
    interval_s: float = 0.0


class Delivery(StrEnum):
    """The delivery guarantee of the sinks if a micro-batch is run again after a failure."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True)
class Case:
    """A test: rows of sources in, rows of nodes out. Only the columns that an expected row names are compared."""

    name: str
    given: Mapping[str, tuple[Row, ...]]
    expected: Mapping[str, tuple[Row, ...]]
    declared_at: Place | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PipelineModel:
    name: str
    directory: Path
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]  # each after its inputs
    sinks: tuple[Sink, ...]
    bootstrap: str = "127.0.0.1:9092"
    dead_letters: str = ""  # a topic; empty: the pipeline's name with LETTERS_SUFFIX
    delivery: Delivery = Delivery.EXACTLY_ONCE
    trigger: Trigger = Trigger()
    master: str = ""  # Spark's; empty: this machine
    spark: Mapping[str, str] = field(default_factory=dict)  # further settings of Spark
    checkpoints: str = (
        ""  # a directory that all of Spark's machines reach; empty: CHECKPOINTS in the pipeline's directory
    )
    cases: tuple[Case, ...] = ()
    config: str = ""  # a client's properties file, absolute or relative to the directory: how to connect to the broker

    @property
    def letters_topic(self) -> str:
        return self.dead_letters or f"{self.name}{LETTERS_SUFFIX}"

    @property
    def checkpoint_root(self) -> str:
        return self.checkpoints or str(self.directory / CHECKPOINTS)

    def source(self, name: str) -> Source | None:
        return next((each for each in self.sources if each.name == name), None)

    def step(self, name: str) -> Step | None:
        return next((each for each in self.steps if each.name == name), None)

    def sink(self, name: str) -> Sink | None:
        return next((each for each in self.sinks if each.name == name), None)
