"""Record values to columns and back: JSON, CSV, Avro, Protobuf, text and raw bytes, and the schema registry.

`decode` never raises for what a record contains and never loses a row: a record that cannot be decoded has NULL in all
columns of the value and its cause in ERROR. A tombstone (a record without a value) has NULL in all of them, ERROR too.
"""

from __future__ import annotations

from importlib.util import find_spec

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats import csv_values, declared, json_values, plain_values
from flowstone.pipeline.model import Format, FormatKind

__all__ = ["check", "columns_of", "decode", "encode"]


def decode(records: DataFrame, format: Format, spark: SparkSession) -> DataFrame:
    """Return the columns of the values, then RECORD unchanged, then ERROR.

    `records` has exactly one column, RECORD. Raises PipelineError as `columns_of` does.
    """
    if format.kind is FormatKind.RAW:
        return plain_values.decode_raw(records)
    if format.kind is FormatKind.TEXT:
        return plain_values.decode_text(records)
    if format.kind is FormatKind.JSON:
        return json_values.decode(records, declared.columns(format), format.options)
    if format.kind is FormatKind.CSV:
        return csv_values.decode(records, _csv_columns(format), format.options)
    if format.kind is FormatKind.AVRO and not format.registry:
        _require("numpy", "avro")
        from flowstone.pipeline.formats.avro import columns as avro

        return avro.decode(records, avro.schema_text(format.schema))
    raise PipelineError(f"values of the format {format.kind} cannot be read yet")


def encode(columns: StructType, format: Format, subject: str) -> Column:
    """Return an expression over a DataFrame with these columns: the bytes of a record's value.

    `subject` is the name under which the registry, if there is one, gets the schema.
    """
    if format.kind in (FormatKind.RAW, FormatKind.TEXT):
        return plain_values.encode(columns, format.kind)
    if format.kind is FormatKind.JSON:
        return json_values.encode(columns, format.options)
    if format.kind is FormatKind.CSV:
        return csv_values.encode(columns, format.options)
    if format.kind is FormatKind.AVRO and not format.registry:
        _require("numpy", "avro")
        from flowstone.pipeline.formats.avro import columns as avro

        text = avro.schema_text(format.schema) if format.schema else avro.schema_for(columns, subject)
        return avro.encode(columns, text)
    raise PipelineError(f"values of the format {format.kind} cannot be written yet")


def columns_of(format: Format) -> StructType:
    """Return the columns that `decode` produces. Raises PipelineError if the schema is absent or malformed."""
    if format.kind is FormatKind.RAW:
        return plain_values.RAW_COLUMNS
    if format.kind is FormatKind.TEXT:
        return plain_values.TEXT_COLUMNS
    if format.kind is FormatKind.JSON:
        return _nullable(declared.columns(format))
    if format.kind is FormatKind.CSV:
        return _nullable(_csv_columns(format))
    if format.kind is FormatKind.AVRO and not format.registry:
        if not format.schema.strip():
            raise PipelineError(
                "the format avro needs the schema of its values: as JSON, as a file, or from a registry"
            )
        _require("numpy", "avro")
        from flowstone.pipeline.formats.avro import columns as avro

        return avro.columns_of(avro.schema_text(format.schema))
    raise PipelineError(f"values of the format {format.kind} cannot be read yet")


def check(format: Format) -> None:
    """Raise PipelineError if the schema is malformed, its registry unreachable or an optional package missing."""
    columns_of(format)


def _nullable(columns: StructType) -> StructType:
    return StructType([StructField(each.name, each.dataType) for each in columns])


def _csv_columns(format: Format) -> StructType:
    columns = declared.columns(format)
    csv_values.check(columns, format.options)
    return columns


def _require(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise PipelineError(
            f"values of the format {extra} need {package}; install it with: pip install 'flowstone[{extra}]'"
        )
