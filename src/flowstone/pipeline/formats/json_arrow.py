"""JSON values to Arrow columns with the native kernel, for the values whose meaning is beyond doubt.

The kernel decodes a value only if Spark's own parser would make the same of it; all others are NULL here, and
`json_values` has Spark decode them. So the kernel decides nothing about bad or unusual values.

Columns of strings, booleans, integers, doubles, decimals, dates and timestamps can be decoded. A schema with others is
left to Spark altogether. Without the native kernel everything is: there is no form in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

_decode_json: Any
try:
    from flowstone.kernel.native import releasing_library

    _decode_json = releasing_library.flowstone_decode_json
    _decode_json.argtypes = (ctypes.c_void_p,)
    _decode_json.restype = None
except (ImportError, AttributeError):
    _decode_json = None

COLUMNS_MAX = 1024  # keep equal to COLUMNS_MAX in json_scan.h


class JsonKind(IntEnum):
    """The type of a column. Keep equal to `enum json_kind` in json_rows.c."""

    STRING = 0
    BOOLEAN = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    DOUBLE = 6
    DECIMAL = 7
    DATE = 8
    TIMESTAMP = 9


class _JsonColumn(ctypes.Structure):
    """Mirror of `struct json_column` in json_rows.c."""

    size_bytes: int
    _fields_ = (
        ("kind", ctypes.c_int64),
        ("is_required", ctypes.c_int64),
        ("precision", ctypes.c_int64),
        ("scale", ctypes.c_int64),
        ("name_size", ctypes.c_int64),
        ("name", ctypes.c_char_p),
        ("validity", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("strings", ctypes.c_void_p),
        ("size_bytes", ctypes.c_int64),
    )


class _JsonCall(ctypes.Structure):
    """Mirror of `struct decode_json_call` in json_rows.c."""

    _fields_ = (
        ("row_count", ctypes.c_int64),
        ("column_count", ctypes.c_int64),
        ("assumes_utc", ctypes.c_int64),
        ("offsets", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("decoded", ctypes.c_void_p),
        ("columns", ctypes.POINTER(_JsonColumn)),
        ("decoded_count", ctypes.c_int64),
    )


_KINDS: dict[type[st.DataType], tuple[JsonKind, pa.DataType]] = {
    st.BooleanType: (JsonKind.BOOLEAN, pa.bool_()),
    st.ByteType: (JsonKind.INT8, pa.int8()),
    st.ShortType: (JsonKind.INT16, pa.int16()),
    st.IntegerType: (JsonKind.INT32, pa.int32()),
    st.LongType: (JsonKind.INT64, pa.int64()),
    st.DoubleType: (JsonKind.DOUBLE, pa.float64()),
    st.DateType: (JsonKind.DATE, pa.date32()),
    st.TimestampType: (JsonKind.TIMESTAMP, pa.timestamp("us", "UTC")),
}
# Memory for the strings of all columns in one call of the kernel, if it has more than one value.
STRINGS_BYTES_MAX = 512 << 20
# Shapes of which one process remembers the columns.
_SHAPES_MAX = 100


@dataclass(frozen=True)
class Field:
    """A column of the values: what the kernel needs to know of it, and its type."""

    name: str
    kind: JsonKind
    type: pa.DataType
    is_required: bool = False


def fields_of(columns: st.StructType) -> tuple[Field, ...] | None:
    """Return the columns for `decode`, or None if the kernel cannot decode all of them, or is not there."""
    if _decode_json is None or len(columns) > COLUMNS_MAX:
        return None
    found = [_field_of(each) for each in columns]
    return None if None in found else tuple(each for each in found if each is not None)


def _field_of(column: st.StructField) -> Field | None:
    kind = column.dataType
    if kind == st.StringType():  # not one with another collation, or of a fixed length
        return Field(column.name, JsonKind.STRING, pa.string(), not column.nullable)
    if isinstance(kind, st.DecimalType):
        found = (JsonKind.DECIMAL, pa.decimal128(kind.precision, kind.scale))
    elif type(kind) in _KINDS:
        found = _KINDS[type(kind)]
    else:
        return None
    return Field(column.name, *found, not column.nullable)


def decode(values: pa.Array, fields: Sequence[Field], *, assumes_utc: bool) -> pa.StructArray:
    """Return a struct of the fields for each value, NULL for values that are left to Spark, and for NULL.

    `assumes_utc`: a timestamp without a zone is in UTC; otherwise such a value is left to Spark.
    """
    values = values.cast(pa.binary())
    if values.null_count:
        values = values.fill_null(b"")  # which is no JSON object
    strings = sum(each.kind is JsonKind.STRING for each in fields)
    rows = _rows_at_once(len(values), values.nbytes * strings)
    if rows >= len(values):
        return _decode(values, fields, assumes_utc)
    parts = range(0, len(values), rows)
    return pa.concat_arrays([_decode(values.slice(at, rows), fields, assumes_utc, shrink=True) for at in parts])


def _rows_at_once(count: int, strings_bytes: int) -> int:
    """Return how many values are decoded together: each column of strings is given as many bytes as their text has."""
    return max(count, 1) if strings_bytes <= STRINGS_BYTES_MAX else max(1, count * STRINGS_BYTES_MAX // strings_bytes)


def _decode(values: pa.Array, fields: Sequence[Field], assumes_utc: bool, *, shrink: bool = False) -> pa.StructArray:
    """Decode one part of the values. To shrink its memory takes as long as a third of the decoding."""
    count = len(values)
    _, offsets, data = values.buffers()
    # The values of a slice begin at its offset.
    bounds = (ctypes.c_int32 * (count + 1)).from_address(offsets.address + 4 * values.offset) if count else [0]
    text_bytes = bounds[count] - bounds[0]
    outputs = [_Output(each, count, text_bytes) for each in fields]
    columns = (_JsonColumn * len(fields))(*(each.column for each in outputs))
    decoded = _zeroed(_bits(count))
    call = _JsonCall(
        row_count=count,
        column_count=len(fields),
        assumes_utc=assumes_utc,
        offsets=offsets.address + 4 * values.offset if count else None,
        data=data.address if data is not None else None,
        decoded=decoded.address,
        columns=columns,
    )
    _decode_json(ctypes.byref(call))
    arrays = [each.array(count, columns[index].size_bytes, shrink=shrink) for index, each in enumerate(outputs)]
    is_decoded = pa.Array.from_buffers(pa.bool_(), count, [None, decoded])
    return pa.StructArray.from_arrays(arrays, fields=list(_arrow_fields(tuple(fields))), mask=pc.invert(is_decoded))


@lru_cache(_SHAPES_MAX)
def _arrow_fields(fields: tuple[Field, ...]) -> tuple[pa.Field, ...]:
    return tuple(pa.field(each.name, each.type) for each in fields)


class _Output:
    """The memory of one column."""

    def __init__(self, field: Field, rows: int, text_bytes: int) -> None:
        self._field = field
        is_string = field.kind is JsonKind.STRING
        self._validity = _zeroed(_bits(rows))
        self._strings = pa.allocate_buffer(text_bytes, resizable=True) if is_string else None
        self._values = _zeroed(4 * (rows + 1) if is_string else _bytes_of(field.type, rows))
        name = field.name.encode()
        is_decimal = field.kind is JsonKind.DECIMAL
        self.column = _JsonColumn(
            kind=field.kind,
            is_required=field.is_required,
            precision=field.type.precision if is_decimal else 0,
            scale=field.type.scale if is_decimal else 0,
            name_size=len(name),
            name=name,
            validity=self._validity.address,
            values=self._values.address,
            strings=self._strings.address if self._strings is not None else None,
        )

    def array(self, rows: int, size_bytes: int, *, shrink: bool) -> pa.Array:
        buffers = [self._validity, self._values]
        if self._strings is not None:
            self._strings.resize(size_bytes, shrink_to_fit=shrink)
            buffers.append(self._strings)
        return pa.Array.from_buffers(self._field.type, rows, buffers)


def _bytes_of(kind: pa.DataType, rows: int) -> int:
    return _bits(rows) if kind.bit_width == 1 else kind.bit_width // 8 * rows


def _bits(count: int) -> int:
    return (count + 7) // 8


def _zeroed(size: int) -> pa.Buffer:
    """Return writable memory: the kernel leaves values of null rows as they are."""
    return pa.py_buffer(bytearray(max(size, 1)))
