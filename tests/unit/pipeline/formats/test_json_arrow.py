"""Native decoding of plain JSON values, compared with Python's own parser."""

from __future__ import annotations

import datetime
import json
import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.types import StructField, StructType

from flowstone.pipeline.formats import json_arrow
from tests.spark_pipeline.formats.json_texts import random_values

# The columns of tests.spark_pipeline.formats.json_texts, without a session that parses DDL.
KINDS: dict[str, st.DataType] = {
    "id": st.StringType(),
    "small": st.ByteType(),
    "short": st.ShortType(),
    "number": st.IntegerType(),
    "count": st.LongType(),
    "total": st.DoubleType(),
    "price": st.DecimalType(8, 2),
    "wide": st.DecimalType(38, 6),
    "flag": st.BooleanType(),
    "day": st.DateType(),
    "at": st.TimestampType(),
    "größe": st.IntegerType(),
}
FIELDS = json_arrow.fields_of(StructType([StructField(name, kind) for name, kind in KINDS.items()]))

pytestmark = pytest.mark.skipif(FIELDS is None, reason="the native kernel is not built")


def decoded(values: list[bytes | None], *, assumes_utc: bool = True) -> list[dict[str, Any] | None]:
    assert FIELDS is not None
    found = json_arrow.decode(pa.array(values, pa.binary()), FIELDS, assumes_utc=assumes_utc)
    found.validate(full=True)
    return [
        None if each is None else {name: field for name, field in each.items() if field is not None}
        for each in found.to_pylist()
    ]


def test_every_kind_of_column_is_decoded() -> None:
    value = (
        r'{"id": "\u00e4\ud83d\ude00 x", "small": -128, "short": 32767, "number": -1, "count": 999999999999999999,'
        r'"total": -0.5e1, "price": -1.5, "wide": 12, "flag": true, "day": "2024-02-29",'
        r'"at": "1969-12-31T23:59:59.5+01:00", "größe": 3, "other": [{"id": "}"}, -1e5, null]}'
    )
    [row] = decoded([value.encode()])
    assert row == {
        "id": "ä😀 x",
        "small": -128,
        "short": 32767,
        "number": -1,
        "count": 999999999999999999,
        "total": -5.0,
        "price": Decimal("-1.50"),
        "wide": Decimal("12.000000"),
        "flag": True,
        "day": datetime.date(2024, 2, 29),
        "at": datetime.datetime(1969, 12, 31, 22, 59, 59, 500000, tzinfo=datetime.UTC),
        "größe": 3,
    }


def test_nothing_but_exactly_one_object_is_decoded() -> None:
    values: list[bytes | None] = [
        None,
        b"",
        b"5",
        b"[{}]",
        b"{}{}",
        b"{} x",
        b'{"number": 1',
        b'{"number": 1,}',
        b"\xef\xbb\xbf{}",
    ]
    assert decoded(values) == [None] * len(values)
    assert decoded([b"{}", b" {\n} "]) == [{}, {}]


def test_a_field_that_occurs_twice_or_has_another_type_is_left_to_spark() -> None:
    values = [
        b'{"number":1,"number":1}',
        b'{"number":"1"}',
        b'{"number":1.0}',
        b'{"id":5}',
        b'{"small":128}',
        b'{"price":1.255}',
    ]
    assert decoded([*values, b'{"number":1}']) == [None] * len(values) + [{"number": 1}]


def test_a_name_that_is_too_long_for_sparks_parser_is_left_to_it() -> None:
    long, longer = ("ä" * 25_000, "n" * 50_001)
    texts = [
        text % name for name in (long, longer) for text in ('{"number":1,"%s":2}', '{"number":1,"other":[{"%s":2}]}')
    ]
    assert decoded([each.encode() for each in texts]) == [{"number": 1}, {"number": 1}, None, None]


def test_a_required_field_must_be_there() -> None:
    fields = json_arrow.fields_of(StructType([StructField("id", st.StringType(), nullable=False)]))
    assert fields is not None
    values = pa.array([b'{"id":"a"}', b'{"id":null}', b"{}"])
    assert json_arrow.decode(values, fields, assumes_utc=True).to_pylist() == [{"id": "a"}, None, None]


def test_a_timestamp_without_zone_is_decoded_only_where_it_is_utc() -> None:
    value = b'{"at":"2026-11-01 10:00:00"}'
    assert decoded([value]) == [{"at": datetime.datetime(2026, 11, 1, 10, tzinfo=datetime.UTC)}]
    assert decoded([value], assumes_utc=False) == [None]


def test_a_slice_of_an_array_is_decoded() -> None:
    assert FIELDS is not None
    values = pa.array([b'{"id":"a"}', b'{"id":"b"}', b'{"id":"c"}']).slice(1, 2)
    assert [each["id"] for each in json_arrow.decode(values, FIELDS, assumes_utc=True).to_pylist()] == ["b", "c"]
    assert len(json_arrow.decode(values.slice(0, 0), FIELDS, assumes_utc=True)) == 0


@pytest.mark.parametrize("kind", [st.ArrayType(st.StringType()), st.FloatType(), st.BinaryType(), st.VarcharType(5)])
def test_a_schema_with_other_types_is_left_to_spark(kind: st.DataType) -> None:
    assert json_arrow.fields_of(StructType([StructField("id", st.StringType()), StructField("x", kind)])) is None


def test_doubles_are_those_of_python() -> None:
    source = random.Random(24)
    doubles = struct.unpack("<5000d", source.randbytes(40_000))
    texts = [repr(each) for each in doubles if 1e-240 < each < 1e240]
    assert len(texts) > 1500
    found = decoded([f'{{"total":{each}}}'.encode() for each in texts])
    assert [each and each["total"] for each in found] == [float(each) for each in texts]


def test_random_values_are_decoded_as_python_does_or_left_to_spark() -> None:
    values = random_values(20_000, seed=22)
    found = decoded(list(values))
    assert sum(each is not None for each in found) > len(values) // 3
    for value, row in zip(values, found, strict=True):
        if row is not None:
            assert row == expected(value), value


def expected(value: bytes) -> dict[str, Any]:
    """Return the fields of a value that Python's strict parser accepts; raises for others."""
    pairs = json.loads(value.decode(), object_pairs_hook=list, parse_float=Decimal, parse_constant=refuse)
    names = [name for name, _field in pairs if name in KINDS]
    assert len(set(names)) == len(names), "a field occurs twice"
    return {name: of_kind(KINDS[name], field) for name, field in pairs if name in KINDS and field is not None}


def refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def of_kind(kind: st.DataType, field: Any) -> Any:
    if isinstance(kind, st.DoubleType):
        assert type(field) in (int, Decimal)
        return float(field)
    if isinstance(kind, st.DecimalType):
        assert type(field) in (int, Decimal)
        assert field == round(Decimal(field), kind.scale)
        return Decimal(field)
    if isinstance(kind, st.DateType):
        return datetime.date.fromisoformat(field)
    if isinstance(kind, st.TimestampType):
        at = datetime.datetime.fromisoformat(field)
        return at if at.tzinfo else at.replace(tzinfo=datetime.UTC)
    assert type(field) is {st.StringType: str, st.BooleanType: bool}.get(type(kind), int)
    return field


def test_many_columns_of_strings_are_decoded_in_parts_that_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{number}" for number in range(100)]
    fields = json_arrow.fields_of(st.StructType([st.StructField(name, st.StringType()) for name in names]))
    assert fields is not None
    rows = [{name: f"{row} of {name}" for name in names} for row in range(500)]
    values = pa.array([None, b"no object", *(json.dumps(row).encode() for row in rows), b"[]"])
    whole = json_arrow.decode(values, fields, assumes_utc=True)
    assert whole.to_pylist() == [None, None, *rows, None]
    monkeypatch.setattr(json_arrow, "STRINGS_BYTES_MAX", 10 * values.nbytes)
    allocated: list[int] = []
    allocate = pa.allocate_buffer

    def counting(size: int, **more: Any) -> Any:
        allocated.append(size)
        return allocate(size, **more)

    monkeypatch.setattr(pa, "allocate_buffer", counting)
    before = pa.total_allocated_bytes()
    assert json_arrow.decode(values, fields, assumes_utc=True).equals(whole)
    assert max(allocated) * len(names) < 2 * json_arrow.STRINGS_BYTES_MAX
    assert pa.total_allocated_bytes() - before < 4 * values.nbytes
