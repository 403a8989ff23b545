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
    """One kind of declaration. `fields[0]` is the first argument in Python, and identifies the kind in YAML."""

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
    "options",
    Type.MAP,
    "options of the registry: `subject`, `version`, `auto.register.schemas`, `request.timeout.ms`, …",
)

FORMATS = (
    Declaration(
        "json",
        "One JSON object per record. A sink needs no schema.",
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
        "Avro values; the schema is given as text, in a file or in a registry.",
        (
            Field("schema", Type.TEXT, "the schema as JSON, or the path of a file with it"),
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
    "where the pipeline's first run starts: `earliest`, `latest`, or a time in ISO 8601",
    "`earliest`",
)
VALUE = Field("value", Type.FORMAT, "the format of values", "`json`")
TOPIC_SOURCE = Declaration(
    "topic",
    "Records of topics. The column `_record` has their topic, partition, offset, timestamp, key, value and headers.",
    (
        Field("topic", Type.TEXTS, "one or several topics; required unless `pattern` is set"),
        VALUE,
        STARTING,
        Field(
            "pattern", Type.TEXT, "instead of `topic`: a regular expression that the whole name of a topic must match"
        ),
        Field("records_per_batch_max", Type.COUNT, "maximum number of records in a micro-batch", "no limit"),
        Field("options", Type.MAP, "further options of the [Spark source](spark-options.md)"),
    ),
    parts.topic,
)
TOPIC_SINK = Declaration(
    "topic",
    "Rows as records of a topic. All topics of a micro-batch and its dead letters are written in one transaction.",
    (
        Field("topic", Type.TEXT, "the topic", is_required=True),
        VALUE,
        Field("key", Type.TEXT, "the column that becomes the record's key; it remains in the value", "no key"),
        Field("options", Type.MAP, "further options of the [Spark sink](spark-writing.md#options)"),
    ),
    parts.topic,
)
KEYS = Field(
    "keys", Type.TEXTS, "key columns: a row replaces the row of the table that has the same values in these columns"
)
PARTITION_BY = Field("partition_by", Type.TEXTS, "partition columns: each of their values has its own files")
COMPACT = Field(
    "compact_every_s",
    Type.NUMBER,
    "interval in seconds between compactions of small files while the pipeline runs",
    "`0`: never",
)
DELETE_WHEN = Field(
    "delete_when",
    Type.TEXT,
    "with `keys`: a row that meets this SQL condition deletes the table's row with the same keys",
)
# Of each kind of table: its name, and the options of sources and of sinks.
TABLES = {
    "delta": (
        "a Delta table",
        "deltalake's `storage_options`, and `version`, the version to read",
        "deltalake's `storage_options`",
    ),
    "iceberg": (
        "an Iceberg table",
        "those of pyiceberg's `load_catalog`; `catalog`, the catalog's name; `snapshot`, the id of a snapshot to read",
        "those of pyiceberg's `load_catalog`, and `catalog`, the catalog's name",
    ),
    "parquet": ("a Parquet table", "those of Spark's Parquet reader", "none: Parquet sinks have no options"),
}


def _table(kind: str, path: Field, sink: tuple[Field, ...], python: Callable[..., Any]) -> tuple[Declaration, ...]:
    """Return the declarations of a kind of table: as a source and as a sink."""
    name, source_options, sink_options = TABLES[kind]
    read = f"Rows of {name}, for lookups. The table is read again for each micro-batch."
    written = f"Rows appended to {name} exactly once"
    written += ", or merged into it by keys." if KEYS in sink else ", as files in a directory."
    return (
        Declaration(kind, read, (path, Field("options", Type.MAP, source_options)), python),
        Declaration(kind, written, (path, *sink, Field("options", Type.MAP, sink_options)), python),
    )


PATH = "path or URL of the table; a path is relative to the pipeline's directory"
DELTA_SOURCE, DELTA_SINK = _table(
    "delta",
    Field("delta", Type.TEXT, PATH, is_required=True),
    (KEYS, PARTITION_BY, COMPACT, DELETE_WHEN),
    parts.delta,
)
ICEBERG_SOURCE, ICEBERG_SINK = _table(
    "iceberg",
    Field(
        "iceberg",
        Type.TEXT,
        "`namespace.table` in the catalog of `options`, or `directory/namespace.table` without options",
        is_required=True,
    ),
    (KEYS, PARTITION_BY, COMPACT, DELETE_WHEN),
    parts.iceberg,
)
PARQUET_SOURCE, PARQUET_SINK = _table(
    "parquet", Field("parquet", Type.TEXT, PATH, is_required=True), (PARTITION_BY,), parts.parquet
)
FILES = Declaration(
    "files",
    "New files of a directory, as a stream.",
    (
        Field("files", Type.TEXT, "the directory; a path is relative to the pipeline's directory", is_required=True),
        Field("kind", Type.FILE_KIND, "the format of the files", "`json`", choices=("json", "csv", "parquet", "text")),
        Field("schema", Type.TEXT, f"{SCHEMA}; required unless the files are text"),
        Field("options", Type.MAP, "further options of Spark's file source"),
    ),
    parts.files,
)
CONSOLE = Declaration(
    "console",
    "Prints the first rows of each micro-batch.",
    (Field("console", Type.COUNT, "maximum number of rows", "`20`"),),
    parts.console,
)
SOURCES = (TOPIC_SOURCE, DELTA_SOURCE, ICEBERG_SOURCE, PARQUET_SOURCE, FILES)
SINKS = (TOPIC_SINK, DELTA_SINK, ICEBERG_SINK, PARQUET_SINK, CONSOLE)

PIPELINE = (
    Field("name", Type.TEXT, "the pipeline's name, which identifies its state on the broker", is_required=True),
    Field("bootstrap", Type.TEXT, "addresses of one or more brokers, separated by commas", "`127.0.0.1:9092`"),
    Field("config", Type.TEXT, "a properties file with encryption and login; `--config` overrides it"),
    Field("dead_letters", Type.TEXT, "the topic of dead letters", "`<name>-letters`"),
    Field(
        "delivery",
        Type.TEXT,
        "the delivery guarantee of the sinks if a micro-batch is run again",
        "`exactly-once`",
        choices=tuple(Delivery),
    ),
    Field("trigger", Type.TRIGGER, "when micro-batches start", "`continuous`"),
    Field("master", Type.TEXT, "Spark's master", "`local[*]`: this machine"),
    Field("spark", Type.MAP, "further settings of Spark"),
    Field("checkpoints", Type.TEXT, "a directory that all machines of Spark can access", "`.flowstone/checkpoints`"),
)
EXPECTATIONS_HELP = "conditions that each row should meet"
STEP = (
    Field(
        "inputs", Type.TEXTS, "the sources and steps that the step reads", "a function's parameters, or SQL's tables"
    ),
    Field("sql", Type.TEXT, "SQL text in which the inputs are tables"),
    Field("sql_file", Type.TEXT, "instead of `sql`: the path of a file with the SQL text"),
    Field(
        "function",
        Type.TEXT,
        "instead of `sql`: a function of DataFrames, `module:function`, of a module in the pipeline's directory",
    ),
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
    Action.FAIL: "the micro-batch fails, none of its rows are written, and the run ends",
}
