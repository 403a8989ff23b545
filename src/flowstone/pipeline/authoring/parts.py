"""The parts of a declaration: formats, topics, tables, files, expectations and triggers.

Each is a function of the Python form. `fields` describes their parameters, which YAML has as fields of the same names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from flowstone.pipeline.errors import PipelineError, Place
from flowstone.pipeline.model import (
    Action,
    ConsoleSink,
    Expectation,
    FileSource,
    Format,
    FormatKind,
    TableSink,
    TableSource,
    TopicSink,
    TopicSource,
    Trigger,
    TriggerKind,
)

_HERE = Path(__file__).parent

E = TypeVar("E", bound=StrEnum)


def json(schema: str = "", **options: str) -> Format:
    """Declare JSON values; `schema` is Spark's DDL, and `options` are those of its JSON functions."""
    return Format(FormatKind.JSON, schema, options=options)


def csv(schema: str = "", **options: str) -> Format:
    """Declare CSV values; `schema` is Spark's DDL, and `options` are those of its CSV functions."""
    return Format(FormatKind.CSV, schema, options=options)


def avro(schema: str = "", *, registry: str = "", **options: str) -> Format:
    """Declare Avro values; `schema` is JSON or a file, unless a registry has it. `options` are the registry's."""
    return Format(FormatKind.AVRO, schema, registry=registry, options=options)


def protobuf(schema: str = "", *, message: str = "", registry: str = "", **options: str) -> Format:
    """Declare Protobuf values; `schema` is a descriptor set's file, unless a registry has it."""
    return Format(FormatKind.PROTOBUF, schema, message, registry, options)


def text() -> Format:
    return Format(FormatKind.TEXT)


def raw() -> Format:
    return Format(FormatKind.RAW)


@dataclass(frozen=True)
class Topic:
    """A topic as a source or as a sink."""

    names: tuple[str, ...]
    value: Format
    key: str = ""
    starting: str = ""
    pattern: str = ""
    records_per_batch_max: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def source(self) -> TopicSource:
        if self.key:
            raise PipelineError("key names a column of a sink; a source has the record's key in the column _record.key")
        starting = self.starting or "earliest"
        return TopicSource(self.names, self.value, self.pattern, starting, self.records_per_batch_max, self.options)

    def sink(self) -> TopicSink:
        for name in ("starting", "pattern", "records_per_batch_max"):
            if getattr(self, name):
                raise PipelineError(f"{name} is for a topic that is read, not for one that is written")
        if len(self.names) != 1:
            raise PipelineError(f"a sink writes one topic, not {len(self.names)}")
        return TopicSink(self.names[0], self.value, self.key, self.options)


@dataclass(frozen=True)
class Table:
    """A table as a source or as a sink."""

    kind: str
    path: str
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    compact_every_s: float = 0.0
    delete_when: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def source(self) -> TableSource:
        if self.keys or self.partition_by or self.compact_every_s or self.delete_when:
            raise PipelineError(f"{self.path}: a table that is read has a path and options only")
        return TableSource(self.kind, self.path, self.options)

    def sink(self) -> TableSink:
        columns = (self.keys, self.partition_by)
        return TableSink(self.kind, self.path, *columns, self.compact_every_s, self.delete_when, self.options)


def topic(
    *topic: str,
    value: Format | None = None,
    key: str = "",
    starting: str = "",
    pattern: str = "",
    records_per_batch_max: int | None = None,
    **options: str,
) -> Topic:
    """Declare topics that are read, or one that is written; `options` are those of the Spark source or sink."""
    return Topic(topic, value or json(), key, starting, pattern, records_per_batch_max, options)


def delta(
    delta: str,
    *,
    keys: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    compact_every_s: float = 0.0,
    delete_when: str = "",
    **options: str,
) -> Table:
    """Declare a Delta table; `options` are those of its storage and, for a source, `version`."""
    return Table("delta", delta, tuple(keys), tuple(partition_by), compact_every_s, delete_when, options)


def iceberg(
    iceberg: str,
    *,
    keys: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    compact_every_s: float = 0.0,
    delete_when: str = "",
    **options: str,
) -> Table:
    """Declare an Iceberg table, `namespace.table`; `options` are those of its catalog."""
    return Table("iceberg", iceberg, tuple(keys), tuple(partition_by), compact_every_s, delete_when, options)


def parquet(parquet: str, *, partition_by: Sequence[str] = (), **options: str) -> Table:
    """Declare a directory of Parquet files; a source's `options` are Spark's."""
    return Table("parquet", parquet, partition_by=tuple(partition_by), options=options)


def files(files: str, kind: str = "json", schema: str = "", **options: str) -> FileSource:
    """Declare files that are added to a directory; `schema` is Spark's DDL, `options` are its file source's."""
    return FileSource(kind, files, schema, options)


def console(console: int = 20) -> ConsoleSink:
    """Declare a sink that prints the first rows of each micro-batch, so many at most."""
    return ConsoleSink(console)


def expect(name: str, condition: str, *, otherwise: str = "keep") -> Expectation:
    """Declare a condition in SQL that each row should meet; otherwise keep, drop or divert the row, or fail."""
    return Expectation(name, condition, choice(Action, otherwise, "otherwise", caller()), caller())


def interval(seconds: float) -> Trigger:
    return Trigger(TriggerKind.INTERVAL, seconds)


def once() -> Trigger:
    return Trigger(TriggerKind.ONCE)


def choice(kind: type[E], value: str, what: str, place: Place | None = None) -> E:
    """Return the member of an enumeration. Raises PipelineError with the members if there is no such one."""
    try:
        return kind(value)
    except ValueError:
        raise PipelineError(f"{what} is {value!r}, and can be {', '.join(kind)}", place) from None


def caller() -> Place:
    """Return the place outside this package from which a declaration was made."""
    frame = sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == _HERE:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)
