"""Avro values without a registry to columns and back, in Spark, with fastavro on the other side."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import Row, SparkSession

from flowstone.pipeline import PipelineError, formats
from flowstone.pipeline.model import ERROR, RECORD, Format, FormatKind
from tests.spark_pipeline.formats.format_records import cause, decoded, fields, records

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line",
            "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}],
        }}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
    ],
}  # fmt: skip
AVRO = Format(FormatKind.AVRO, json.dumps(SCHEMA))
AT = datetime.datetime(2026, 11, 1, 10, 0, 0, 123000, tzinfo=datetime.UTC)
ORDER = {
    "id": "grün", "customer": None, "total": Decimal("-1.25"), "at": AT,
    "lines": [{"sku": "a", "n": 1}, {"sku": "", "n": -1}], "tags": {"x": 2**62}, "state": "PAID",
}  # fmt: skip
COLUMNS = {
    **ORDER,
    "at": AT.replace(tzinfo=None),
    "lines": [Row(sku="a", n=1), Row(sku="", n=-1)],
}


def written(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


def test_values_that_fastavro_wrote_become_columns_and_bad_ones_errors(spark: SparkSession) -> None:
    good = written(SCHEMA, ORDER)
    whole, short, long, tombstone, also = decoded(spark, [good, good[:-1], good + b"x", None, good], AVRO)
    assert fields(whole) == fields(also) == COLUMNS
    assert cause(short) == "MalformedValue: the field state: the value ends inside it"
    assert cause(long) == "MalformedValue: 1 bytes follow the value: it was written with another schema"
    assert set(fields(tombstone).values()) == {None}


def test_values_are_decoded_once_even_if_errors_are_filtered(spark: SparkSession) -> None:
    frame = formats.decode(records(spark, [b"", written(SCHEMA, ORDER)]), AVRO, spark).where(f"{ERROR} IS NULL")
    assert frame._jdf.queryExecution().executedPlan().toString().count("ArrowEvalPython [") == 1
    assert [row[RECORD].offset for row in frame.collect()] == [1]


def test_rows_written_as_avro_are_read_by_fastavro(spark: SparkSession) -> None:
    frame = spark.createDataFrame([tuple(COLUMNS.values())], formats.columns_of(AVRO))
    [row] = frame.select(formats.encode(frame.schema, AVRO, "t-value").alias("value")).collect()
    assert fastavro.schemaless_reader(io.BytesIO(row.value), fastavro.parse_schema(SCHEMA), None) == ORDER


def test_a_sink_without_a_schema_gets_one_from_its_columns(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 'a' AS id, CAST(NULL AS bigint) AS n, array(1, NULL) AS many")
    [row] = frame.select(formats.encode(frame.schema, Format(FormatKind.AVRO), "my-t-value").alias("value")).collect()
    schema = {
        "type": "record",
        "name": "my_t",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "n", "type": ["null", "long"]},
            {"name": "many", "type": {"type": "array", "items": ["null", "int"]}},
        ],
    }
    read = fastavro.schemaless_reader(io.BytesIO(row.value), fastavro.parse_schema(schema), None)
    assert read == {"id": "a", "n": None, "many": [1, None]}


def test_the_schema_may_be_a_file(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(SCHEMA))
    assert formats.columns_of(Format(FormatKind.AVRO, str(file))) == formats.columns_of(AVRO)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("", "needs the schema of its values"),
        ("missing.avsc", "neither JSON nor a file"),
        ("{", "is not JSON"),
        ('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "r"}]}', "refers to itself"),
        ('{"type": "array", "items": "null"}', "whose items take no bytes"),
        ('{"type": "record", "name": "r", "fields": [{"name": "_error", "type": "int"}]}', "pipelines reserve"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(spark: SparkSession, schema: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        formats.check(Format(FormatKind.AVRO, schema))


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("SELECT 1 AS id", "the column id is int, and the schema wants string"),
        ("SELECT 'a' AS id, 1 AS more", "the schema has no field more"),
        ("SELECT 'a' AS id", "the schema's field total is no column"),
    ],
)
def test_columns_that_do_not_fit_the_schema_are_refused(spark: SparkSession, select: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        formats.encode(spark.sql(select).schema, AVRO, "t-value")
