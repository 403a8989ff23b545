"""Rows of tests into topics, tables and files, and out of what the sinks have written.

A row is a JSON object with the values of columns. In rows of topics KEY is the record's key, and VALUE its value as
text instead of columns, for records that cannot be decoded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from flowstone.pipeline import formats, tables
from flowstone.pipeline.engine.letters import EXCEPTION_MESSAGE, STAGE
from flowstone.pipeline.engine.sources import Range, read_batch
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import (
    ERROR,
    RECORD,
    Format,
    FormatKind,
    PipelineModel,
    Row,
    Sink,
    Source,
    TableSink,
    TopicSink,
    TopicSource,
)
from flowstone.pipeline.operations.rows import collect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KEY, VALUE = "_key", "_value"
FLUSH_TIMEOUT_S = 30.0


def produce(spark: SparkSession, bootstrap: str, topic: str, format: Format, rows: Sequence[Row]) -> None:
    """Write rows to a topic in this order. Raises PipelineError if the broker does not take them in time."""
    producer = Producer({"bootstrap.servers": bootstrap})
    encoded = iter(_encoded(spark, format, [each for each in rows if VALUE not in each]))
    for row in rows:
        value = to_bytes(row[VALUE]) if VALUE in row else next(encoded)
        producer.produce(topic, value, key=to_bytes(row.get(KEY)))
    if producer.flush(FLUSH_TIMEOUT_S):
        raise PipelineError(f"the rows of topic {topic} could not be written within {FLUSH_TIMEOUT_S:g} s")


def _encoded(spark: SparkSession, format: Format, rows: Sequence[Row]) -> list[bytes | None]:
    """Return the values of records with these columns."""
    columns = [{name: value for name, value in row.items() if name != KEY} for row in rows]
    if format.kind == FormatKind.JSON:
        return [json.dumps(each, default=str).encode() for each in columns]
    if format.kind in (FormatKind.RAW, FormatKind.TEXT):
        return [to_bytes(each.get("value")) for each in columns]
    if not columns:
        return []
    schema = formats.columns_of(format)
    frame = frame_of(spark, columns, schema)
    return [bytes(row[0]) for row in frame.select(formats.encode(schema, format, "test")).collect()]


def frame_of(spark: SparkSession, rows: Sequence[Row], schema: StructType | str) -> DataFrame:
    """Return rows of JSON values as a DataFrame with this schema."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    texts = [(json.dumps(dict(row), default=str),) for row in rows]
    frame = spark.createDataFrame(texts, "json string")
    return frame.select(F.from_json("json", schema, {"mode": "FAILFAST"}).alias("row")).select("row.*")


def written_rows(spark: SparkSession, model: PipelineModel, sink: Sink, columns: StructType) -> list[dict[str, Any]]:
    """Return the rows that a topic or table sink has written; `columns` are those of its input."""
    target = sink.target
    if isinstance(target, TableSink):
        return collect(tables.read(spark, target.kind, target.path, target.options))
    assert isinstance(target, TopicSink)
    ddl = ", ".join(f"`{each.name}` {each.dataType.simpleString()}" for each in columns if each.name != RECORD)
    written = target.value if target.value.schema or target.value.registry else _with_schema(target.value, ddl)
    source = Source(sink.name, TopicSource((target.topic,), written))
    return collect(read_batch(spark, model, source, Range()).drop(ERROR))


def _with_schema(format: Format, ddl: str) -> Format:
    from dataclasses import replace

    return replace(format, schema=ddl) if format.kind in (FormatKind.JSON, FormatKind.CSV) else format


def letter_row(key: bytes | None, value: bytes | None, headers: Mapping[str, bytes | None]) -> dict[str, Any]:
    """Return a dead letter as a row: key and value as text if they are UTF-8, the stage and the cause."""
    return {
        "key": to_text(key),
        "value": to_text(value),
        "stage": to_text(headers.get(STAGE)),
        "message": to_text(headers.get(EXCEPTION_MESSAGE)),
    }


def to_text(value: bytes | None) -> str | None:
    """Return bytes as text, or in Base64 if they are not UTF-8."""
    if value is None:
        return None
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        return base64.b64encode(bytes(value)).decode()


def to_bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
