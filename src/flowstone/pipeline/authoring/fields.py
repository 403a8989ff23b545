"""The table of everything that a pipeline may declare: names, types, defaults and one sentence each.

`pipeline.yaml` is read by it, its JSON Schema and docs/pipeline-reference.md are generated from it, and a test compares
it with the signatures of the Python form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flowstone.pipeline.authoring import parts
from flowstone.pipeline.model import Action, Delivery


class Type(StrEnum):
    TEXT = "text"
    TEXTS = "text, or a list of texts"
    NUMBER = "number"
    COUNT = "whole number"
    MAP = "texts by name"
    FORMAT = "format"
    TRIGGER = "trigger"
    EXPECTATIONS = "expectations by name"
    ROWS = "rows by node"
    FILE_KIND = "json, csv, parquet or text"


@dataclass(frozen=True)
class Field:
    name: str
    type: Type
    help: str
    default: str = ""  # as the reference shows it
    is_required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declaration:
    """`fields[0]` is the main one: the first argument in Python, and in YAML the field that tells the kind."""

    name: str
    help: str
    fields: tuple[Field, ...]
    python: Callable[..., Any]

    @property
    def field_names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.fields)


SCHEMA = "the columns as Spark's DDL, such as `id string NOT NULL, total double`"
REGISTRY = Field("registry", Type.TEXT, "the URL of a schema registry; values then have the Confluent wire format")
REGISTRY_OPTIONS = Field(
    "options", Type.MAP, "of the registry: `subject`, `version`, `auto.register.schemas`, `request.timeout.ms`, …"
)

FORMATS = (
    Declaration(
        "json",
        "One JSON object per record. A topic that is written needs no schema.",
        (
            Field("schema", Type.TEXT, SCHEMA),
            Field("options", Type.MAP, "options of Spark's JSON functions, such as `timestampFormat`"),
        ),
        parts.json,
    ),
    Declaration(
        "csv",
        "One line of separated fields per record.",
        (
            Field("schema", Type.TEXT, SCHEMA),
            Field("options", Type.MAP, "options of Spark's CSV functions, such as `sep` and `quote`"),
        ),
        parts.csv,
    ),
    Declaration(
        "avro",
        "Avro values; the schema is here, in a file or in a registry.",
        (
            Field("schema", Type.TEXT, "the schema as JSON, or the path of a file that has it"),
            REGISTRY,
            REGISTRY_OPTIONS,
        ),
        parts.avro,
    ),
    Declaration(
        "protobuf",
        "Protobuf values; the schema is in a descriptor set or in a registry.",
        (
            Field("schema", Type.TEXT, "the path of a descriptor set (`protoc --descriptor_set_out`)"),
            Field("message", Type.TEXT, "the full name of the message"),
            REGISTRY,
            REGISTRY_OPTIONS,
        ),
        parts.protobuf,
    ),
    Declaration("text", "The value as one column `value` of text.", (), parts.text),
    Declaration("raw", "The value as one column `value` of bytes; every value can be decoded.", (), parts.raw),
)

STARTING = Field(
    "starting",
    Type.TEXT,
    "where a pipeline that never ran starts: `earliest`, `latest`, or a time in ISO 8601",
    "`earliest`",
)
VALUE = Field("value", Type.FORMAT, "the format of values", "`json`")
TOPIC_SOURCE = Declaration(
    "topic",
    "Records of topics. The column `_record` has their topic, partition, offset, timestamp, key, value and headers.",
    (
        Field("topic", Type.TEXTS, "the topic, or several; required unless there is a pattern"),
        VALUE,
        STARTING,
        Field("pattern", Type.TEXT, "instead of topics: a regular expression that their whole names match"),
        Field("records_per_batch_max", Type.COUNT, "the largest number of records in a micro-batch", "no limit"),
        Field("options", Type.MAP, "further options of the [Spark source](spark-options.md)"),
    ),
    parts.topic,
)
TOPIC_SINK = Declaration(
    "topic",
    "Rows as records of a topic: all topics of a micro-batch, and its dead letters, in one transaction.",
    (
        Field("topic", Type.TEXT, "the topic", is_required=True),
        VALUE,
        Field("key", Type.TEXT, "the column that becomes the record's key, also a part of its value", "no key"),
        Field("options", Type.MAP, "further options of the [Spark sink](spark-writing.md#options)"),
    ),
    parts.topic,
)
KEYS = Field("keys", Type.TEXTS, "with them a row replaces older ones that have the same values in these columns")
PARTITION_BY = Field("partition_by", Type.TEXTS, "columns by which the files are separated")
COMPACT = Field(
    "compact_every_s", Type.NUMBER, "how often small files are compacted while the pipeline runs", "`0`: never"
)
DELETE_WHEN = Field("delete_when", Type.TEXT, "with keys: rows that meet this SQL condition delete what has their keys")
STORAGE = Field("options", Type.MAP, "options of the storage; for a source also `version`")


def _table(kind: str, path: Field, sink: tuple[Field, ...], python: Callable[..., Any]) -> tuple[Declaration, ...]:
    name = {"delta": "Delta", "iceberg": "Iceberg", "parquet": "Parquet"}[kind]
    read = f"A {name} table for lookups, read anew for each micro-batch."
    written = f"Rows appended to a {name} table once, or merged into it." if KEYS in sink else f"{name} files."
    return (
        Declaration(kind, read, (path, STORAGE), python),
        Declaration(kind, written, (path, *sink, STORAGE), python),
    )


PATH = "its path or URL; relative to the pipeline's directory"
DELTA_SOURCE, DELTA_SINK = _table(
    "delta",
    Field("delta", Type.TEXT, PATH, is_required=True),
    (KEYS, PARTITION_BY, COMPACT, DELETE_WHEN),
    parts.delta,
)
ICEBERG_SOURCE, ICEBERG_SINK = _table(
    "iceberg",
    Field("iceberg", Type.TEXT, "its name, `namespace.table`", is_required=True),
    (KEYS, PARTITION_BY, COMPACT, DELETE_WHEN),
    parts.iceberg,
)
PARQUET_SOURCE, PARQUET_SINK = _table(
    "parquet", Field("parquet", Type.TEXT, PATH, is_required=True), (PARTITION_BY,), parts.parquet
)
FILES = Declaration(
    "files",
    "Files that are added to a directory, as a stream.",
    (
        Field("files", Type.TEXT, "the directory; relative to the pipeline's", is_required=True),
        Field("kind", Type.FILE_KIND, "the format of the files", "`json`", choices=("json", "csv", "parquet", "text")),
        Field("schema", Type.TEXT, f"{SCHEMA}; required unless the files are text"),
        Field("options", Type.MAP, "further options of Spark's file source"),
    ),
    parts.files,
)
CONSOLE = Declaration(
    "console",
    "The first rows of each micro-batch, printed.",
    (Field("console", Type.COUNT, "how many rows", "`20`"),),
    parts.console,
)
SOURCES = (TOPIC_SOURCE, DELTA_SOURCE, ICEBERG_SOURCE, PARQUET_SOURCE, FILES)
SINKS = (TOPIC_SINK, DELTA_SINK, ICEBERG_SINK, PARQUET_SINK, CONSOLE)

PIPELINE = (
    Field("name", Type.TEXT, "its name, by which its state on the broker is found", is_required=True),
    Field("bootstrap", Type.TEXT, "the broker's address, or several separated by commas", "`127.0.0.1:9092`"),
    Field("config", Type.TEXT, "a client's properties file with encryption and login; `--config` overrides it"),
    Field("dead_letters", Type.TEXT, "the topic of dead letters", "`<name>-letters`"),
    Field(
        "delivery",
        Type.TEXT,
        "what the sinks get if a micro-batch is run again",
        "`exactly-once`",
        choices=tuple(Delivery),
    ),
    Field("trigger", Type.TRIGGER, "when micro-batches begin", "`continuous`"),
    Field("master", Type.TEXT, "Spark's master", "`local[*]`: this machine"),
    Field("spark", Type.MAP, "further settings of Spark"),
    Field("checkpoints", Type.TEXT, "a directory that all of Spark's machines reach", "`.flowstone/checkpoints`"),
)
EXPECTATIONS_HELP = "conditions that each row should meet"
STEP = (
    Field("inputs", Type.TEXTS, "the sources and steps that it reads", "a function's parameters, or SQL's tables"),
    Field("sql", Type.TEXT, "its SQL text, in which the inputs are tables"),
    Field("sql_file", Type.TEXT, "or the path of a file that has it"),
    Field("function", Type.TEXT, "or a function of DataFrames, `module:function`, of a module in the directory"),
    Field("expect", Type.EXPECTATIONS, EXPECTATIONS_HELP),
)
EXPECTATION = (
    Field("condition", Type.TEXT, "a condition in SQL; NULL counts as not met", is_required=True),
    Field("otherwise", Type.TEXT, "what happens to other rows", "`keep`", choices=tuple(Action)),
)
TEST = (
    Field(
        "given", Type.ROWS, "rows of sources; `_key` is a record's key, `_value` its value as text instead of columns"
    ),
    Field(
        "expected",
        Type.ROWS,
        "rows of sources, steps and sinks, and of `letters`; only the columns that they name are compared",
        is_required=True,
    ),
)
SINK_INPUT = Field("input", Type.TEXT, "the source or step whose rows are written", is_required=True)
ACTIONS = {
    Action.KEEP: "the row stays",
    Action.DROP: "the row is dropped",
    Action.DIVERT: "the row becomes a dead letter",
    Action.FAIL: "the micro-batch fails, and nothing of it is written",
}
