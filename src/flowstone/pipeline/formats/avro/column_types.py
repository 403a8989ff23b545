"""The columns of an Avro type, in Spark and in Arrow, and the Avro schema for columns of Spark.

| Avro | Spark |
|---|---|
| boolean, int, long, float, double, string, bytes | boolean, int, bigint, float, double, string, binary |
| date; timestamp-millis, -micros, -nanos; local-timestamp-… | date; timestamp (microseconds); timestamp_ntz |
| decimal | decimal |
| enum; fixed | string; binary |
| record, array, map | struct, array, map<string, …> |
| union of null and one type | that type |
| union of int and long, or of float and double | bigint, double |
| other unions | a struct of `member0`, `member1`, …, of which one is not NULL |

Other logical types are what they are stored as. A schema that is no record has one column, `value`.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats.avro.schemas import Array, Enum, Map, Primitive, Record, Type, Union

VALUE = "value"
_SPARK: dict[str, st.DataType] = {
    "null": st.NullType(),
    "boolean": st.BooleanType(),
    "int": st.IntegerType(),
    "long": st.LongType(),
    "float": st.FloatType(),
    "double": st.DoubleType(),
    "string": st.StringType(),
    "bytes": st.BinaryType(),
    "date": st.DateType(),
    "timestamp": st.TimestampType(),
    "local-timestamp": st.TimestampNTZType(),
}
_ARROW: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "local-timestamp": pa.timestamp("us"),
}
UNITS_PER_S = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def scalar_kind(type: Type) -> str:
    """Return the key under which a type that holds no other is found, and for others an empty string."""
    if isinstance(type, Enum):
        return "string"
    logical = getattr(type, "logical", "")
    if logical == "decimal" and type.kind in ("bytes", "fixed"):
        return "decimal"
    if type.kind == "int" and logical == "date":
        return "date"
    if type.kind == "long" and timestamp_unit(type):
        return "local-timestamp" if logical.startswith("local-") else "timestamp"
    if type.kind == "fixed":
        return "bytes"
    return type.kind if isinstance(type, Primitive) else ""


def timestamp_unit(type: Type) -> int:
    """Return the units per second of a timestamp, and 0 for another type."""
    name, _, unit = getattr(type, "logical", "").rpartition("-")
    return UNITS_PER_S.get(unit, 0) if name in ("timestamp", "local-timestamp") else 0


def members(union: Union) -> tuple[Type, ...]:
    """Return a union's branches without null. Int and long become long; float and double become double."""
    branches = tuple(each for each in union.branches if each.kind != "null")
    kinds = {scalar_kind(each) for each in branches}
    for wider in (Primitive("long"), Primitive("double")):
        if kinds == {wider.kind, {"long": "int", "double": "float"}[wider.kind]}:
            return (wider,)
    return branches


def spark_type(type: Type) -> st.DataType:
    if isinstance(type, Record):
        return st.StructType([st.StructField(each.name, spark_type(each.type)) for each in type.fields])
    if isinstance(type, Array):
        return st.ArrayType(spark_type(type.items))
    if isinstance(type, Map):
        return st.MapType(st.StringType(), spark_type(type.values))
    if isinstance(type, Union):
        found = members(type)
        if len(found) < 2:
            return spark_type(found[0]) if found else st.NullType()
        return st.StructType([st.StructField(f"member{n}", spark_type(each)) for n, each in enumerate(found)])
    kind = scalar_kind(type)
    if kind == "decimal":
        assert not isinstance(type, Enum)
        return st.DecimalType(type.precision, type.scale)
    return _SPARK[kind]


def arrow_type(type: Type) -> pa.DataType:
    if isinstance(type, Record):
        return pa.struct([pa.field(each.name, arrow_type(each.type)) for each in type.fields])
    if isinstance(type, Array):
        return pa.list_(pa.field("element", arrow_type(type.items)))
    if isinstance(type, Map):
        return pa.map_(pa.string(), arrow_type(type.values))
    if isinstance(type, Union):
        found = members(type)
        if len(found) < 2:
            return arrow_type(found[0]) if found else pa.null()
        return pa.struct([pa.field(f"member{n}", arrow_type(each)) for n, each in enumerate(found)])
    kind = scalar_kind(type)
    if kind == "decimal":
        assert not isinstance(type, Enum)
        return pa.decimal128(type.precision, type.scale)
    return _ARROW[kind]


def columns(type: Type) -> st.StructType:
    """Return the columns of a whole value."""
    found = spark_type(type)
    return found if isinstance(type, Record) else st.StructType([st.StructField(VALUE, found)])  # type: ignore[return-value]


_AVRO: dict[type[st.DataType], Any] = {
    st.BooleanType: "boolean",
    st.ByteType: "int",
    st.ShortType: "int",
    st.IntegerType: "int",
    st.LongType: "long",
    st.FloatType: "float",
    st.DoubleType: "double",
    st.StringType: "string",
    st.BinaryType: "bytes",
    st.DateType: {"type": "int", "logicalType": "date"},
    st.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    st.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def schema_of(found: st.StructType, name: str) -> str:
    """Return the Avro schema of a record with these columns. Raises PipelineError for types that Avro does not have."""
    return json.dumps(_record(found, name, "")[0])


def _record(found: st.StructType, name: str, namespace: str) -> tuple[dict[str, Any], str]:
    inner = f"{namespace}.{name}" if namespace else name
    fields = [_field(each, inner) for each in found]
    named = {"type": "record", "name": name, **({"namespace": namespace} if namespace else {}), "fields": fields}
    return named, inner


def _field(column: st.StructField, namespace: str) -> dict[str, Any]:
    type = _avro(column.dataType, column.name, namespace)
    if column.nullable:
        return {"name": column.name, "type": ["null", type], "default": None}
    return {"name": column.name, "type": type}


def _avro(type: st.DataType, name: str, namespace: str) -> Any:
    if isinstance(type, st.StructType):
        return _record(type, name, namespace)[0]
    if isinstance(type, st.ArrayType):
        items = _avro(type.elementType, name, namespace)
        return {"type": "array", "items": ["null", items] if type.containsNull else items}
    if isinstance(type, st.MapType) and isinstance(type.keyType, st.StringType):
        values = _avro(type.valueType, name, namespace)
        return {"type": "map", "values": ["null", values] if type.valueContainsNull else values}
    if isinstance(type, st.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": type.precision, "scale": type.scale}
    for each, avro in _AVRO.items():
        if isinstance(type, each):
            return avro
    raise PipelineError(
        f"the column {name} is {type.simpleString()}, which Avro does not have; cast it to another type in a step"
    )
