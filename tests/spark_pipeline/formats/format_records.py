"""Records in the form that sources of topics have, for the tests of formats."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from flowstone.pipeline import formats
from flowstone.pipeline.model import ERROR, RECORD, Format

RECORD_TYPE = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
AT = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.UTC)


def records(
    spark: SparkSession, values: Sequence[bytes | None], headers: Sequence[list[tuple[str, bytes]]] = ()
) -> DataFrame:
    rows = [(("t", 0, n, AT, None, value, headers[n] if headers else []),) for n, value in enumerate(values)]
    return spark.createDataFrame(rows, f"{RECORD} struct<{RECORD_TYPE}>")


def decoded(spark: SparkSession, values: Sequence[bytes | None], format: Format, **more: Any) -> list[Row]:
    """Return the decoded rows in the order of the values, after the checks that hold for all formats."""
    frame = formats.decode(records(spark, values, **more), format, spark)
    declared = formats.columns_of(format)
    assert frame.columns == [*declared.names, RECORD, ERROR]
    # Pipelines are analysed with these columns instead.
    assert frame.drop(RECORD, ERROR).schema.simpleString() == declared.simpleString()
    rows = sorted(frame.collect(), key=lambda row: row[RECORD].offset)
    assert [None if row[RECORD].value is None else bytes(row[RECORD].value) for row in rows] == list(values)
    for row in rows:
        if row[ERROR] is not None:
            assert row[ERROR].stage == "VALUE_CONVERTER"
            assert row[ERROR].message
            assert all(field is None for field in row[:-2])
    return rows


def fields(row: Row) -> Mapping[str, Any]:
    """Return the value's columns of a row that has no error."""
    assert row[ERROR] is None, row[ERROR]
    return dict(zip(row.__fields__[:-2], row[:-2], strict=True))


def cause(row: Row) -> str:
    return f"{row[ERROR]['class']}: {row[ERROR].message}"
