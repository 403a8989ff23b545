"""Protobuf values as columns of a DataFrame: what the facade of the formats calls for values without a registry.

| Protobuf | Spark |
|---|---|
| bool, string, bytes, float, double | boolean, string, binary, float, double |
| int32, sint32, sfixed32; int64, sint64, sfixed64 | int; bigint |
| uint32, fixed32; uint64, fixed64 | bigint; decimal(20,0) |
| enum | string: the name, or the number if the schema has none for it |
| message, repeated, map | struct, array, map |
| Timestamp, Duration; wrappers | timestamp, interval day to second; the wrapped type |

Fields without presence (of proto3, not `optional`) have their default, never NULL.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from ptars import HandlerPool, PtarsConfig
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as st

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats import arrow_values, declared
from flowstone.pipeline.formats.arrow_values import Decoded
from flowstone.pipeline.formats.bad_values import BadValue
from flowstone.pipeline.formats.protobuf import descriptors
from flowstone.pipeline.formats.widening import widened

_CONFIG = PtarsConfig(timestamp_unit="us", time_unit="us", duration_unit="us", enum_repr="string")
_HANDLERS_MAX = 100
Causes = dict[int, tuple[BadValue, str]]
_SPARK: dict[pa.DataType, st.DataType] = {
    pa.bool_(): st.BooleanType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.timestamp("us", "UTC"): st.TimestampType(),
    pa.duration("us"): st.DayTimeIntervalType(),
    pa.time64("us"): st.LongType(),
}
_ARROW = {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0), pa.time64("us"): pa.int64()}


@lru_cache(_HANDLERS_MAX)
def _handler(descriptor_set: bytes, name: str) -> Any:
    found = descriptors.message(descriptor_set, name)
    return HandlerPool([found.file], _CONFIG).get_for_message(found)


def columns_of(descriptor_set: bytes, name: str) -> st.StructType:
    schema = _handler(descriptor_set, name).schema()
    return declared.refuse_reserved(st.StructType([st.StructField(each.name, _spark(each.type)) for each in schema]))


def arrow_columns(descriptor_set: bytes, name: str) -> pa.DataType:
    schema = _handler(descriptor_set, name).schema()
    return pa.struct([pa.field(each.name, _arrow(each.type)) for each in schema])


def decode(records: DataFrame, descriptor_set: bytes, name: str) -> DataFrame:
    decoder = partial(_decode, descriptor_set, name)
    return arrow_values.decode(records, columns_of(descriptor_set, name), decoder)


def _decode(descriptor_set: bytes, name: str, values: pa.Array, headers: pa.Array | None) -> Decoded:
    return decode_values(values, descriptor_set, name)


def decode_values(values: pa.Array, descriptor_set: bytes, name: str) -> Decoded:
    """Return a struct of the message's fields for each value, by halving the values until the bad ones are alone."""
    handler = _handler(descriptor_set, name)
    causes: Causes = {}
    batches = list(_batches(handler, values, 0, causes))
    rows = pa.concat_arrays([pa.StructArray.from_arrays(each.columns, fields=list(each.schema)) for each in batches])
    wanted = arrow_columns(descriptor_set, name)
    rows = rows.cast(wanted)
    if causes:
        good = pa.array([index not in causes for index in range(len(values))])
        rows = pc.if_else(good, rows, pa.scalar(None, wanted))
    return Decoded(rows, causes)


def _batches(
    handler: Any, values: pa.Array, first: int, causes: dict[int, tuple[BadValue, str]]
) -> list[pa.RecordBatch]:
    try:
        return [handler.array_to_record_batch(values)]
    except ValueError as error:
        if len(values) == 1:
            causes[first] = _cause(str(error))
            # A message without fields, in place of the bad one.
            return [handler.array_to_record_batch(pa.array([b""], pa.binary()))]
    half = len(values) // 2
    return [
        *_batches(handler, values[:half], first, causes),
        *_batches(handler, values[half:], first + half, causes),
    ]


def _cause(message: str) -> tuple[BadValue, str]:
    text = message.removeprefix("failed to decode Protobuf message: ")
    kind = BadValue.INVALID_UTF8 if "UTF-8" in text else BadValue.MALFORMED
    return kind, f"the value is not a Protobuf message of this type: {text}"


def encode(columns: st.StructType, descriptor_set: bytes, name: str, prefix: bytes = b"") -> Column:
    """Return the expression of the values. `prefix` is what each value begins with."""
    wanted = columns_of(descriptor_set, name)
    # In Protobuf any field may be absent.
    row = widened(columns, wanted, defaults=frozenset(wanted.names))
    return arrow_values.udf(partial(_encode, descriptor_set, name, prefix), st.BinaryType())(row)


def _encode(descriptor_set: bytes, name: str, prefix: bytes, rows: pa.Array) -> pa.Array:
    return encode_rows(rows, descriptor_set, name, prefix)


def encode_rows(rows: pa.Array, descriptor_set: bytes, name: str, prefix: bytes = b"") -> pa.Array:
    handler = _handler(descriptor_set, name)
    schema = handler.schema()
    nullable = pa.schema([pa.field(each.name, each.type) for each in schema])
    columns = [column.cast(each.type) for column, each in zip(rows.flatten(), schema, strict=True)]
    values = handler.record_batch_to_array(pa.RecordBatch.from_arrays(columns, schema=nullable))
    return pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), values, pa.scalar(b"", pa.binary()))


def _spark(type: pa.DataType) -> st.DataType:
    if pa.types.is_struct(type):
        return st.StructType([st.StructField(each.name, _spark(each.type)) for each in type])
    if pa.types.is_list(type):
        return st.ArrayType(_spark(type.value_type))
    if pa.types.is_map(type):
        return st.MapType(_spark(type.key_type), _spark(type.item_type))
    if type not in _SPARK:
        raise PipelineError(
            f"the schema has a field that is {type} in Arrow, which pipelines do not have; read the values as raw"
        )
    return _SPARK[type]


def _arrow(type: pa.DataType) -> pa.DataType:
    """Return the type that Spark has for a type of ptars."""
    if pa.types.is_struct(type):
        return pa.struct([pa.field(each.name, _arrow(each.type)) for each in type])
    if pa.types.is_list(type):
        return pa.list_(pa.field("element", _arrow(type.value_type)))
    if pa.types.is_map(type):
        return pa.map_(_arrow(type.key_type), _arrow(type.item_type))
    return _ARROW.get(type, type)
