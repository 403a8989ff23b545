"""Record values to columns and back: JSON, CSV, Avro, Protobuf, text and raw bytes, and the schema registry.

`decode` never raises for what a record contains and never loses a row: a record that cannot be decoded has NULL in all
columns of the value and its cause in ERROR. A tombstone (a record without a value) has NULL in all of them, ERROR too.

`subject` is the name under which a registry has the schema, as in "orders-value"; formats without one ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats import csv_values, declared, json_values, plain_values, with_schema
from flowstone.pipeline.model import Format, FormatKind

__all__ = ["check", "columns_of", "decode", "encode", "for_tests", "read_stream", "subject_of"]


def subject_of(*topics: str) -> str:
    """Return the subject of a topic's values; of several topics there is none."""
    return f"{topics[0]}-value" if len(topics) == 1 else ""


def decode(records: DataFrame, format: Format, spark: SparkSession, subject: str = "") -> DataFrame:
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
    return with_schema.of(format).decode(records, format, subject)


def read_stream(
    spark: SparkSession, options: Mapping[str, str], format: Format, *, keeps_records: bool
) -> DataFrame | None:
    """Return a stream of topics with the columns of `decode`, decoded while they are read; None if that is impossible.

    `options` are those of the format flowstone. Without `keeps_records` good rows may have no RECORD.
    """
    if format.kind is not FormatKind.JSON or format.options:
        return None
    return json_values.read_stream(spark, declared.columns(format), options, keeps_records=keeps_records)


def encode(columns: StructType, format: Format, subject: str) -> Column:
    """Return an expression over a DataFrame with these columns: the bytes of a record's value.

    With a registry the schema is registered under the subject, if it is not there yet.
    """
    if format.kind in (FormatKind.RAW, FormatKind.TEXT):
        return plain_values.encode(columns, format.kind)
    if format.kind is FormatKind.JSON:
        return json_values.encode(columns, format.options)
    if format.kind is FormatKind.CSV:
        return csv_values.encode(columns, format.options)
    return with_schema.of(format).encode(columns, format, subject)


def columns_of(format: Format, subject: str = "") -> StructType:
    """Return the columns that `decode` produces. Raises PipelineError if the schema is absent or malformed."""
    if format.kind is FormatKind.RAW:
        return plain_values.RAW_COLUMNS
    if format.kind is FormatKind.TEXT:
        return plain_values.TEXT_COLUMNS
    if format.kind is FormatKind.JSON:
        return _nullable(declared.columns(format))
    if format.kind is FormatKind.CSV:
        return _nullable(_csv_columns(format))
    return with_schema.of(format).columns_of(format, subject)


def check(format: Format, subject: str = "", *, is_sink: bool = False) -> None:
    """Raise PipelineError if the schema is malformed, its registry unreachable or an optional package missing.

    Nothing is registered.
    """
    if format.registry and format.kind not in (FormatKind.AVRO, FormatKind.PROTOBUF):
        raise PipelineError(f"values of the format {format.kind} have no registry; leave `registry` out")
    if format.kind in (FormatKind.AVRO, FormatKind.PROTOBUF):
        with_schema.check(format, subject, is_sink=is_sink)
    elif not is_sink or format.schema:
        columns_of(format, subject)


def for_tests(format: Format, subject: str, directory: str) -> Format:
    """Return a format of the same columns, for the rows of tests: with no registry, and no field that must be given.

    A file that it needs is written to `directory`.
    """
    if format.kind not in (FormatKind.AVRO, FormatKind.PROTOBUF):
        return format
    return with_schema.of(format).for_tests(format, subject, directory)


def _nullable(columns: StructType) -> StructType:
    return StructType([StructField(each.name, each.dataType) for each in columns])


def _csv_columns(format: Format) -> StructType:
    columns = declared.columns(format)
    csv_values.check(columns, format.options)
    return columns
