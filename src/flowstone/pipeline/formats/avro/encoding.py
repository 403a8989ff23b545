"""Arrow columns to Avro values, without a loop over the rows.

Each column becomes an array of the bytes of its values, and the arrays of a record are joined. The items of a list are
encoded as one array, whose buffer then holds the bytes of each list next to each other.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowstone.pipeline.formats.avro import column_types, schemas
from flowstone.pipeline.formats.avro.schemas import Array, Enum, Fixed, Map, Record, Type, Union
from flowstone.pipeline.formats.cursor import VARINT_BYTES_MAX, Bytes, Ints

_NO_BYTES = pa.scalar(b"", pa.binary())


class UnfitRow(ValueError):
    """A row that the schema cannot hold, such as NULL in a field that takes no null."""


@lru_cache(200)
def _parsed(text: str, references: tuple[str, ...]) -> Type:
    return schemas.parse(text, references)


def encode(rows: pa.Array, schema: str, references: tuple[str, ...] = ()) -> pa.Array:
    """Return the bytes of each row, a struct of the schema's columns. Raises UnfitRow."""
    type = _parsed(schema, references)
    if not isinstance(type, Record):
        rows = rows.field(0)
    return _encode(type, rows.cast(_arrow_type(type)), "")


def _arrow_type(type: Type) -> pa.DataType:
    return column_types.arrow_type(type)


def _encode(type: Type, values: pa.Array, path: str) -> pa.Array:
    if not len(values):
        return pa.array([], pa.binary())
    if isinstance(type, Union):
        return _union(type, values, path)
    if values.null_count and type.kind != "null":
        raise UnfitRow(
            f"the column {path or column_types.VALUE} is NULL in a row, and the Avro schema takes no null there; give "
            f"the field the type ['null', …], or replace NULL in a step"
        )
    if isinstance(type, Record):
        columns = values.flatten()
        named = zip(type.fields, columns, strict=True)
        return join(*(_encode(each.type, column, f"{path}.{each.name}".lstrip(".")) for each, column in named))
    if isinstance(type, Array):
        return _blocks(values.offsets, _encode(type.items, values.flatten(), f"{path}[]"))
    if isinstance(type, Map):
        keys, items = _entries(values)
        pairs = join(_text(keys), _encode(type.values, items, f"{path}{{}}"))
        return _blocks(values.offsets, pairs)
    return _scalar(type, values, path)


def _scalar(type: Type, values: pa.Array, path: str) -> pa.Array:
    if isinstance(type, Enum):
        index = pc.index_in(values, pa.array(type.symbols, pa.string()))
        if index.null_count:
            wrong = values.filter(index.is_null())[0].as_py()
            raise UnfitRow(f'the column {path} is "{wrong[:40]}", which is no symbol of its enum')
        return varints(_numbers(index))
    kind = column_types.scalar_kind(type)
    if kind == "decimal":
        return _decimal(type, values)
    if isinstance(type, Fixed):
        if len(values) and not pc.all(pc.equal(pc.binary_length(values), type.size)).as_py():
            raise UnfitRow(f"the column {path} does not have {type.size} bytes, as its fixed type has")
        return values
    if kind in ("bytes", "string"):
        return _text(values)
    if kind == "null":
        return pa.array([b""], pa.binary()).take(pa.array(np.zeros(len(values), np.int64)))
    if kind in ("float", "double", "boolean"):
        return _plain(kind, values)
    numbers = _numbers(values)
    unit = column_types.timestamp_unit(type)
    if unit > 1_000_000:
        if len(numbers) and np.abs(numbers // 2).max() > 2**62 // 1000:
            raise UnfitRow(f"the column {path} has a time that timestamp-nanos cannot hold")
        numbers = numbers * (unit // 1_000_000)
    return varints(numbers // (1_000_000 // unit) if 0 < unit < 1_000_000 else numbers)


def _numbers(values: pa.Array) -> Ints:
    stored = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    found: Ints = stored.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _plain(kind: str, values: pa.Array) -> pa.Array:
    if kind == "boolean":
        values = values.cast(pa.uint8())
    size = values.type.bit_width // 8
    numbers = np.ascontiguousarray(values.to_numpy(zero_copy_only=False))
    return _sized(numbers.view(np.uint8), np.full(len(values), size))


def _text(values: pa.Array) -> pa.Array:
    data = values.cast(pa.binary())
    return join(varints(_numbers(pc.binary_length(data))), data)


def _sized(data: Bytes, sizes: Ints) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    offsets[1:] = np.cumsum(sizes)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def varints(numbers: Ints) -> pa.Array:
    """Return the numbers in Avro's form: the sign in the lowest bit, seven bits a byte."""
    left = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    if len(left) and int(left.max()) < 0x80:
        return _sized(left.astype(np.uint8), np.ones(len(left), np.int64))
    groups = (left[:, None] >> np.arange(0, 7 * VARINT_BYTES_MAX, 7, dtype=np.uint64)) & np.uint64(0x7F)
    used = np.maximum(VARINT_BYTES_MAX - np.argmax(groups[:, ::-1] > 0, axis=1), 1)
    used[left == 0] = 1
    place = np.arange(VARINT_BYTES_MAX)
    groups[place < used[:, None] - 1] |= np.uint64(0x80)
    return _sized(groups.astype(np.uint8)[place < used[:, None]], used)


def join(*columns: pa.Array) -> pa.Array:
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*columns, _NO_BYTES)


def _blocks(offsets: pa.Array, items: pa.Array) -> pa.Array:
    """Return the lists of these items: one block of each that is not empty, and the count of zero at the end."""
    bounds = offsets.to_numpy().astype(np.int64)
    bounds = bounds - (bounds[0] if len(bounds) else 0)
    counts = np.diff(bounds)
    item_bounds = np.frombuffer(items.buffers()[1], np.int32)[items.offset : items.offset + len(items) + 1]
    if not len(items):
        item_bounds = np.zeros(1, np.int32)
    inner = pa.py_buffer(np.ascontiguousarray(item_bounds[bounds]))
    data = pa.Array.from_buffers(pa.binary(), len(counts), [None, inner, items.buffers()[2] or pa.py_buffer(b"")])
    empty = pa.array(counts == 0)
    end = pc.if_else(empty, pa.scalar(b"", pa.binary()), pa.scalar(b"\x00", pa.binary()))
    return join(varints(counts), data, end)


def _entries(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    first, last = values.offsets[0].as_py(), values.offsets[len(values)].as_py()
    return values.keys.slice(first, last - first), values.items.slice(first, last - first)


def _decimal(type: Type, values: pa.Array) -> pa.Array:
    """Return two's complement numbers, the highest byte first: of 16 bytes, or of the fixed type's size."""
    size = type.size if isinstance(type, Fixed) else 16
    data = np.frombuffer(values.buffers()[1], np.uint8).reshape(-1, 16)[values.offset : values.offset + len(values)]
    whole = data[:, ::-1]
    if size < 16:
        kept = whole[:, 16 - size :]
        sign = np.where(kept[:, :1] & 0x80, 0xFF, 0)
        if (whole[:, : 16 - size] != sign).any():
            raise UnfitRow(f"a decimal does not fit its fixed type of {size} bytes")
        whole = kept
    elif size > 16:
        sign = np.where(whole[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
        whole = np.concatenate([np.repeat(sign, size - 16, axis=1), whole], axis=1)
    found = _sized(np.ascontiguousarray(whole).ravel(), np.full(len(values), size))
    return found if isinstance(type, Fixed) else _text(found)


def _union(type: Union, values: pa.Array, path: str) -> pa.Array:
    members = column_types.members(type)
    null = next((n for n, each in enumerate(type.branches) if each.kind == "null"), None)
    if values.null_count and null is None:
        raise UnfitRow(f"the column {path} is NULL in a row, and its union has no null")
    if len(members) > 1:
        return _members(type, values, null, path)
    if not members:
        return varints(np.zeros(len(values), np.int64))
    number = next(n for n, each in enumerate(type.branches) if each.kind == members[0].kind)
    inner = _encode(members[0], values.drop_null(), path)
    found = _branch(number, inner)
    return found if null is None or not values.null_count else _scattered(found, values.is_valid(), null)


def _branch(number: int, inner: pa.Array) -> pa.Array:
    return join(varints(np.full(len(inner), number, np.int64)), inner)


def _scattered(found: pa.Array, valid: pa.Array, null: int) -> pa.Array:
    """Return the found values where `valid` says so, and the branch of null elsewhere."""
    places = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    spread = found.take(pc.if_else(valid, places, pa.scalar(None, pa.int64())))
    return spread.fill_null(varints(np.array([null]))[0])


def _members(type: Union, values: pa.Array, null: int | None, path: str) -> pa.Array:
    """Return the values of a struct of members, of which one in each row is not NULL."""
    columns = values.flatten()
    given = np.array([column.is_valid().to_numpy(zero_copy_only=False) for column in columns], np.bool_)
    counts = given.sum(axis=0) if len(values) else np.zeros(0, np.int64)
    if (counts > 1).any() or (null is None and (counts == 0).any()):
        raise UnfitRow(f"the column {path} must have exactly one member that is not NULL in each row")
    numbers = [n for n, each in enumerate(type.branches) if each.kind != "null"]
    found = None
    for number, branch, column in zip(numbers, column_types.members(type), columns, strict=True):
        inner = _branch(number, _encode(branch, column.drop_null(), path))
        spread = _scattered(inner, column.is_valid(), null or 0)
        found = spread if found is None else pc.if_else(column.is_valid(), spread, found)
    return found


def prefixed(values: pa.Array, prefix: bytes) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), values, _NO_BYTES)
