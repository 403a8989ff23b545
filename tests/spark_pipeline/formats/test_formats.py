"""JSON, text and raw values to columns and back, in Spark."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf

from flowstone.pipeline import PipelineError, formats
from flowstone.pipeline.formats import json_arrow
from flowstone.pipeline.model import ERROR, RECORD, Format, FormatKind
from tests.spark_pipeline.formats import json_texts
from tests.spark_pipeline.formats.format_records import cause, decoded, fields, records

JSON = Format(
    FormatKind.JSON,
    "id string, number int, total double, price decimal(8,2), at timestamp, flag boolean, tags array<string>, "
    "inner struct<q: array<int>>",
)
NESTED = "WrongType: a field inside an object or an array has another type than the schema says"
NOT_ONE_OBJECT = "MalformedValue: the value is not exactly one JSON object: "

GOOD = {
    b'{"id": "a", "number": 1}': {"id": "a", "number": 1},
    b' {"id": null}\n': {},
    b"{}": {},
    b'{"other": [1, {"x": 2}]}': {},
    b'{"number": 1, "number": 2}': {"number": 2},
    b'{"id": 5}': {"id": "5"},
    b'{"id": {"x": 1}}': {"id": '{"x":1}'},
    b'{"total": 5}': {"total": 5.0},
    b'{"total": 1e400}': {"total": float("inf")},
    b'{"price": 1.5}': {"price": Decimal("1.50")},
    b'{"at": "2026-11-01T10:00:00.123456Z"}': {"at": datetime.datetime(2026, 11, 1, 10, 0, 0, 123456)},
}
BAD = {
    b"": "MalformedValue: the value is empty, and should be a JSON object",
    b"5": "MalformedValue: the value is not a JSON object: 5",
    b"null": "MalformedValue: the value is not a JSON object: null",
    b'"text"': 'MalformedValue: the value is not a JSON object: "text"',
    b'[{"id": "a"}]': 'MalformedValue: the value is not a JSON object: [{"id": "a"}]',
    b'{"id": "a"': 'MalformedValue: the value is not a JSON object: {"id": "a"',
    b"{'id': 'a'}": "MalformedValue: the value is not a JSON object: {'id': 'a'}",
    b'{"id": "a"} rest': NOT_ONE_OBJECT + '{"id": "a"} rest',
    b'{"id": "a"}{"id": "b"}': NOT_ONE_OBJECT + '{"id": "a"}{"id": "b"}',
    b'{"id": "a"},{"id": "b"}': NOT_ONE_OBJECT + '{"id": "a"},{"id": "b"}',
    b'{"id": "a"}]} rest': NOT_ONE_OBJECT + '{"id": "a"}]} rest',
    b'{"id": "a"}],"x":[': NOT_ONE_OBJECT + '{"id": "a"}],"x":[',
    b'{"id": "\xff"}': "InvalidUtf8: the value is not valid UTF-8",
    b'{"number": "1"}': "WrongType: the field number should be int, and is: 1",
    b'{"number": 1.5}': "WrongType: the field number should be int, and is: 1.5",
    b'{"number": 99999999999}': "WrongType: the field number should be int, and is: 99999999999",
    b'{"price": 12345678}': "WrongType: the field price should be decimal(8,2), and is: 12345678",
    b'{"at": "tomorrow"}': "WrongType: the field at should be timestamp, and is: tomorrow",
    b'{"flag": "true"}': "WrongType: the field flag should be boolean, and is: true",
    b'{"tags": "a"}': "WrongType: the field tags should be array<string>, and is: a",
    b'{"inner": {"q": [1, "x"]}}': NESTED,
}  # fmt: skip


def test_json_objects_become_columns(spark: SparkSession) -> None:
    for row, expected in zip(decoded(spark, list(GOOD), JSON), GOOD.values(), strict=True):
        assert {name: value for name, value in fields(row).items() if value is not None} == expected


def test_json_that_does_not_fit_the_schema_exactly_becomes_an_error(spark: SparkSession) -> None:
    assert dict(zip(BAD, map(cause, decoded(spark, list(BAD), JSON)), strict=True)) == BAD


def test_an_error_quotes_at_most_two_hundred_characters(spark: SparkSession) -> None:
    [row] = decoded(spark, [b"[" * 100_000], JSON)
    assert len(row[ERROR].message) < 300


def test_a_missing_field_of_a_column_that_is_not_null_is_an_error(spark: SparkSession) -> None:
    format = Format(FormatKind.JSON, "id string NOT NULL, total double")
    whole, absent, null = decoded(spark, [b'{"id": "a"}', b'{"total": 1}', b'{"id": null}'], format)
    assert fields(whole)["id"] == "a"
    assert (
        cause(absent) == cause(null) == "MissingField: the field id is NOT NULL in the schema, and the value has none"
    )


@pytest.mark.parametrize("format", [JSON, Format(FormatKind.TEXT), Format(FormatKind.RAW)], ids=lambda each: each.kind)
def test_a_tombstone_has_neither_columns_nor_an_error(spark: SparkSession, format: Format) -> None:
    [row] = decoded(spark, [None], format)
    assert set(fields(row).values()) == {None}


def test_text_must_be_utf8(spark: SparkSession) -> None:
    good, bad = decoded(spark, ["grün".encode(), b"\xc3\x28"], Format(FormatKind.TEXT))
    assert fields(good) == {"value": "grün"}
    assert cause(bad) == "InvalidUtf8: the value is not valid UTF-8"


def test_raw_values_are_any_bytes(spark: SparkSession) -> None:
    rows = decoded(spark, [b"", b"\xff\x00"], Format(FormatKind.RAW))
    assert [fields(row)["value"] for row in rows] == [b"", b"\xff\x00"]


@pytest.mark.parametrize("format", [JSON, Format(FormatKind.TEXT)], ids=lambda each: each.kind)
def test_random_bytes_never_raise_and_lose_no_row(spark: SparkSession, format: Format) -> None:
    source = random.Random(20)
    values = [source.randbytes(source.randrange(40)) for _ in range(300)]
    values += [source.choice(list(GOOD))[: source.randrange(30)] + source.randbytes(2) for _ in range(300)]
    assert len(decoded(spark, values, format)) == 600


def test_rows_written_as_json_are_read_as_they_were(spark: SparkSession) -> None:
    at = datetime.datetime(2026, 11, 1, 10, 0, 0, 123456)
    rows = [
        ("a", 1, 0.1, Decimal("1.25"), at, True, ["x", ""], Row(q=[1, -2])),
        (None, None, None, None, None, None, None, None),
        ('quo"te\n', -(2**31), float("inf"), Decimal("-999999.99"), at, False, [], Row(q=[])),
    ]
    columns = formats.columns_of(JSON)
    written = spark.createDataFrame(rows, columns).select(formats.encode(columns, JSON, "t-value").alias("value"))
    values = [bytes(row.value) for row in written.collect()]
    assert [tuple(row[:-2]) for row in decoded(spark, values, JSON)] == rows


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("", "needs the columns of its values"),
        ("id strin", "is not Spark's DDL"),
        ("id string, ID int", "more than one column id"),
        ("_record string", "a name that pipelines reserve"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(spark: SparkSession, schema: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        formats.check(Format(FormatKind.JSON, schema))


def test_text_takes_one_column(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="takes one string column"):
        formats.encode(formats.columns_of(JSON), Format(FormatKind.TEXT), "t-value")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_json_is_decoded_the_same_with_and_without_the_native_kernel(
    spark: SparkSession, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = f"{json_texts.COLUMNS.replace('number int', 'number int NOT NULL')}, made timestamp"
    values = [*json_texts.random_values(2500, seed=23), *GOOD, *BAD]
    values += [each.replace(b"{", b'{"number":1,', 1) for each in values]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        fast = as_text(spark, values, Format(FormatKind.JSON, columns))
        monkeypatch.setattr(json_arrow, "fields_of", lambda columns: None)
        slow = as_text(spark, values, Format(FormatKind.JSON, columns))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sum(row[ERROR] is None for row in slow) > 1000
    assert sum(row[ERROR] is not None for row in slow) > 1000
    for value, one, other in zip(values, fast, slow, strict=True):
        assert one == other, value


def as_text(spark: SparkSession, values: list[bytes], format: Format) -> list[Row]:
    """Return the decoded rows with all fields as Spark's text, which has what Python's types cannot hold."""
    frame = formats.decode(records(spark, values), format, spark)
    columns = (sf.col(each).cast("string").alias(each) for each in frame.columns if each not in (RECORD, ERROR))
    return sorted(frame.select(sf.col(RECORD)["offset"], *columns, ERROR).collect(), key=lambda row: row[0])
