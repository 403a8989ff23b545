"""Avro to Arrow and back, with fastavro on the other side: random schemas, random damage, schema resolution.

`FLOWSTONE_AVRO_SEEDS=2000` tries as many schemas.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from flowstone.pipeline.formats.arrow_values import Decoded
from flowstone.pipeline.formats.avro import decoding, encoding
from tests.unit.pipeline.formats.avro.random_schemas import Maker, comparable

SEEDS = int(os.environ.get("FLOWSTONE_AVRO_SEEDS", "60"))


def written(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


def read(schema: Any, data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)


def decode(values: Sequence[bytes], writer: Any, reader: Any = None) -> Decoded:
    texts = (json.dumps(writer), ()), (json.dumps(writer if reader is None else reader), ())
    found = decoding.decode(pa.array(values, pa.binary()), *texts)
    found.rows.validate(full=True)
    assert [index for index in range(len(values)) if not found.rows[index].is_valid] == sorted(found.causes)
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_values_are_read_and_written_as_fastavro_does(seed: int) -> None:
    maker = Maker(seed)
    schema = maker.record()
    given = [maker.value(schema) for _ in range(maker.random.choice([1, 3, 60]))]
    found = decode([written(schema, each) for each in given], schema)
    assert found.causes == {}
    for row, value in zip(found.rows, given, strict=True):
        assert comparable(schema, row.as_py(), is_arrow=True) == comparable(schema, value, is_arrow=False)
    encoded = encoding.encode(found.rows, json.dumps(schema)).to_pylist()
    assert [read(schema, each) for each in encoded] == [read(schema, written(schema, each)) for each in given]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damage_is_noticed_and_stays_with_its_record(seed: int) -> None:
    maker = Maker(seed)
    schema, source = maker.record(), maker.random
    good = [written(schema, maker.value(schema)) for _ in range(40)]
    harms = [source.choice(["none", "cut", "extended", "changed"]) for _ in good]
    values = []
    for harm, value in zip(harms, good, strict=True):
        changed = bytearray(value)
        changed[source.randrange(len(value))] ^= source.randrange(1, 256)
        all_harms = {"none": value, "cut": value[: source.randrange(len(value))], "extended": value + b"\x00",
                     "changed": bytes(changed)}  # fmt: skip
        values.append(all_harms[harm])
    found, whole = decode(values, schema), decode(good, schema)
    for index, harm in enumerate(harms):
        if harm == "none":
            assert index not in found.causes
            assert found.rows[index] == whole.rows[index]
        if harm in ("cut", "extended"):
            assert index in found.causes


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    named = [each if isinstance(each, dict) else {"name": each[0], "type": each[1]} for each in fields]
    return {"type": "record", "name": name, "fields": named}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DEFAULTED = {"type": "enum", "name": "E", "symbols": ["A", "X"], "default": "X"}
RESOLVED: dict[str, tuple[Any, Any, Any, Any]] = {
    "a field that was added gets its default": (
        record(("a", "int")), {"a": 1},
        record(("a", "int"), {"name": "b", "type": "string", "default": "x"}), {"a": 1, "b": "x"},
    ),
    "a field that was removed is dropped": (
        record(("b", {"type": "array", "items": "string"}), ("a", "int")), {"b": ["x", "y"], "a": 1},
        record(("a", "int")), {"a": 1},
    ),
    "a field that was renamed is found by its alias": (
        record(("old", "int")), {"old": 1},
        record({"name": "new", "type": "long", "aliases": ["older", "old"]}), {"new": 1},
    ),
    "the order of fields does not count": (
        record(("a", "int"), ("b", "string")), {"a": 1, "b": "x"},
        record(("b", "string"), ("a", "int")), {"b": "x", "a": 1},
    ),
    "an int becomes a long, a float or a double": (
        record(("a", "int"), ("b", "int"), ("c", "int")), {"a": 1, "b": 2, "c": 3},
        record(("a", "long"), ("b", "float"), ("c", "double")), {"a": 1, "b": 2.0, "c": 3.0},
    ),
    "bytes become a string": (record(("a", "bytes")), {"a": b"x"}, record(("a", "string")), {"a": "x"}),
    "a field that became nullable": (
        record(("a", "int")), {"a": 1}, record(("a", ["null", "long"])), {"a": 1},
    ),
    "a nullable field that has a value": (
        record(("a", ["null", "int"])), {"a": 1}, record(("a", "long")), {"a": 1},
    ),
    "a symbol that the reader does not know gets the default": (
        record(("a", ENUM)), {"a": "B"}, record(("a", DEFAULTED)), {"a": "X"},
    ),
    "defaults of many types": (
        record(("z", "int")), {"z": 0},
        record(
            {"name": "a", "type": ["null", "int"], "default": None},
            {"name": "b", "type": "bytes", "default": "\u00ff"},
            {"name": "c", "type": {"type": "map", "values": "int"}, "default": {"k": 1}},
            {"name": "d", "type": record(("x", "int"), name="S"), "default": {"x": 7}},
        ),
        {"a": None, "b": b"\xff", "c": [("k", 1)], "d": {"x": 7}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RESOLVED.values(), ids=RESOLVED)
def test_values_of_another_schema_are_resolved(case: tuple[Any, Any, Any, Any]) -> None:
    writer, value, reader, expected = case
    found = decode([written(writer, value)] * 2, writer, reader)
    assert found.rows.to_pylist() == [expected, expected]


UNRESOLVED: dict[str, tuple[Any, Any, Any, str]] = {
    "a field without a default": (
        record(("a", "int")), {"a": 1}, record(("a", "int"), ("b", "int")),
        "the field b is not in the record's schema, and has no default in the reader's",
    ),
    "a type that cannot be widened": (
        record(("a", "string")), {"a": "1"}, record(("a", "int")),
        "the field a is string in the record's schema, and int in the reader's",
    ),
    "null where the reader wants a value": (
        record(("a", ["null", "int"])), {"a": None}, record(("a", "int")),
        "the field a is null in the record's schema, and int in the reader's",
    ),
    "an unknown symbol": (
        record(("a", ENUM)), {"a": "B"}, record(("a", {"type": "enum", "name": "E", "symbols": ["A"]})),
        "the field a: the enum's symbol is not in the reader's schema",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNRESOLVED.values(), ids=UNRESOLVED)
def test_what_cannot_be_resolved_is_a_cause(case: tuple[Any, Any, Any, str]) -> None:
    writer, value, reader, message = case
    found = decode([written(writer, value)], writer, reader)
    assert found.causes == {0: ("IncompatibleSchema", message)}


def test_a_union_is_resolved_for_each_record() -> None:
    writer = record(("a", ["int", "string"]))
    values = [written(writer, {"a": each}) for each in (1, "x", 2)]
    found = decode(values, writer, record(("a", "long")))
    assert [row and row["a"] for row in found.rows.to_pylist()] == [1, None, 2]
    assert list(found.causes) == [1]


def test_counts_and_lengths_of_hostile_records_allocate_nothing() -> None:
    schema = record(("a", {"type": "array", "items": "int"}), ("b", "bytes"))
    huge = written("long", 2**62)
    found = decode([huge, written("long", -(2**63)) + b"\x00", b"\x00" + huge, b"\xff" * 20], schema)
    assert len(found.causes) == 4


def test_blocks_with_their_sizes_are_read() -> None:
    schema = record(("a", {"type": "array", "items": "string"}))
    sized = written("long", -2) + written("long", 4) + b"\x02x\x02y" + written("long", 1) + b"\x02z" + b"\x00"
    assert decode([sized, b"\x00"], schema).rows.to_pylist() == [{"a": ["x", "y", "z"]}, {"a": []}]


def test_a_null_that_the_schema_does_not_take_is_refused() -> None:
    rows = pa.array([{"a": 1}, {"a": None}])
    with pytest.raises(encoding.UnfitRow, match="the column a is NULL in a row"):
        encoding.encode(rows, json.dumps(record(("a", "long"))))
