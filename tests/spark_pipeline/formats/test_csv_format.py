"""CSV values to columns and back, in Spark."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from flowstone.pipeline import PipelineError, formats
from flowstone.pipeline.model import Format, FormatKind
from tests.spark_pipeline.formats.format_records import cause, decoded, fields

CSV = Format(FormatKind.CSV, "id string, number int NOT NULL, total double")
NOT_A_LINE = "MalformedValue: the value is not one line of CSV with 3 fields: "

GOOD = {
    b"a,1,2.5": ("a", 1, 2.5),
    b"a,1,2.5\r\n": ("a", 1, 2.5),
    b",1,": (None, 1, None),
    b'"a,b",1,2': ("a,b", 1, 2.0),
    b'"a\nb",1,2': ("a\nb", 1, 2.0),
    b'"a\\"b",1,2': ('a"b', 1, 2.0),
    "grün,-1,NaN".encode(): ("grün", -1, float("nan")),
}
BAD = {
    b"": NOT_A_LINE,
    b"a,1": NOT_A_LINE + "a,1",
    b"a,1,2,3": NOT_A_LINE + "a,1,2,3",
    b"a,1,2\nb,1,2": NOT_A_LINE + "a,1,2\nb,1,2",
    b'"a,1,2': NOT_A_LINE + '"a,1,2',
    b"a,x,2": "WrongType: the field number should be int, and is: x",
    b"a,1,two": "WrongType: the field total should be double, and is: two",
    b"a,99999999999,2": "WrongType: the field number should be int, and is: 99999999999",
    b"a,,2": "MissingField: the field number is NOT NULL in the schema, and the value has none",
    b"\xff,1,2": "InvalidUtf8: the value is not valid UTF-8",
    b"," * 30_000: NOT_A_LINE + "," * 200,
}


def test_csv_lines_become_columns(spark: SparkSession) -> None:
    rows = [tuple(fields(row).values()) for row in decoded(spark, list(GOOD), CSV)]
    assert repr(rows) == repr(list(GOOD.values()))  # NaN does not equal itself


def test_csv_that_does_not_fit_the_schema_exactly_becomes_an_error(spark: SparkSession) -> None:
    assert dict(zip(BAD, map(cause, decoded(spark, list(BAD), CSV)), strict=True)) == BAD


def test_a_tombstone_has_neither_columns_nor_an_error(spark: SparkSession) -> None:
    [row] = decoded(spark, [None], CSV)
    assert set(fields(row).values()) == {None}


def test_random_bytes_never_raise_and_lose_no_row(spark: SparkSession) -> None:
    source = random.Random(20)
    values = [source.randbytes(source.randrange(40)) for _ in range(200)]
    values += [bytes(source.choice(b'a1,"\n\r\\ #.') for _ in range(source.randrange(20))) for _ in range(300)]
    assert len(decoded(spark, values, CSV)) == 500


def test_rows_written_as_csv_are_read_as_they_were(spark: SparkSession) -> None:
    format = Format(FormatKind.CSV, "a string, b decimal(8,2), c timestamp, d date, e boolean", options={"sep": "|"})
    at = datetime.datetime(2026, 11, 1, 10, 0, 0, 123456)
    rows = [('x|"y\\', Decimal("1.25"), at, at.date(), True), (None, None, None, None, None)]
    written = spark.createDataFrame(rows, formats.columns_of(format)).select(
        formats.encode(formats.columns_of(format), format, "t-value").alias("value")
    )
    values = [bytes(row.value) for row in written.collect()]
    assert [tuple(row[:-2]) for row in decoded(spark, values, format)] == rows


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("a array<int>", {}, "which a CSV value cannot have"),
        ("a varchar(3)", {}, "which a CSV value cannot have"),
        ("a string", {"header": "true"}, "the CSV option header cannot be set"),
    ],
)
def test_what_csv_cannot_have_is_refused(
    spark: SparkSession, schema: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        formats.check(Format(FormatKind.CSV, schema, options=options))
