"""Readers of Avro types: each reads one value of many records at a Cursor, and returns them as an Arrow array.

The type of the array is the one that the reader's schema wants; `resolution.py` chooses the nodes. Rows of bad records
have any value: what is read of them is discarded in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from flowstone.pipeline.formats.bad_values import BadValue
from flowstone.pipeline.formats.cursor import Bits, Cursor, Ints, Rows, subset

INT_MIN, INT_MAX = -(2**31), 2**31 - 1


class Node(Protocol):
    @property
    def type(self) -> pa.DataType: ...

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array: ...


@dataclass(frozen=True)
class NullNode:
    type: pa.DataType

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        return pa.nulls(cursor.count(rows), self.type)


@dataclass(frozen=True)
class ConstantNode:
    """The default of a field that the writer's schema does not have; nothing is read."""

    type: pa.DataType
    value: Any

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        count = cursor.count(rows)
        if self.value is None:
            return pa.nulls(count, self.type)
        return pa.array([self.value], self.type).take(pa.array(np.zeros(count, np.int64)))


@dataclass(frozen=True)
class MismatchNode:
    """A branch of the writer's union that the reader's schema has no type for."""

    type: pa.DataType
    message: str

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        count = cursor.count(rows)
        cursor.fail(rows, np.ones(count, np.bool_), BadValue.INCOMPATIBLE_SCHEMA, self.message)
        return pa.nulls(count, self.type)


@dataclass(frozen=True)
class BooleanNode:
    type: pa.DataType
    what: str

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        starts, _ = cursor.starts_of(rows, 1, self.what)
        byte = cursor.data[starts]
        cursor.fail(rows, byte > 1, BadValue.MALFORMED, f"{self.what}: a boolean is neither 0 nor 1")
        return pa.array(byte == 1)


@dataclass(frozen=True)
class LongNode:
    """A node for int, long, and logical types that are stored as one of them."""

    type: pa.DataType
    what: str
    is_int: bool
    convert: Callable[[Ints], tuple[pa.Array, Bits | None]]  # and which numbers do not fit

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        return self._checked(cursor, rows, cursor.longs(rows, self.what))

    def whole(self, cursor: Cursor, rows: Ints, counts: Ints) -> Ints:
        """Return which records have so many numbers left; the others fail."""
        last_bytes = cursor.last_bytes()
        last = np.searchsorted(last_bytes, cursor.positions[rows]) + counts - 1
        over = last_bytes[np.minimum(last, len(last_bytes) - 1)] >= cursor.ends[rows]
        cursor.fail(rows, over, BadValue.MALFORMED, f"{self.what}: the value ends inside it")
        return np.flatnonzero(~over)

    def read_many(self, cursor: Cursor, rows: Ints, counts: Ints) -> pa.Array:
        """Return the next `counts` numbers of each record, in order. All records have so many."""
        last_bytes = cursor.last_bytes()
        first = np.searchsorted(last_bytes, cursor.positions[rows])
        starts = last_bytes[np.repeat(first, counts) + within(counts) - 1] + 1
        starts[np.cumsum(counts) - counts] = cursor.positions[rows]
        cursor.positions[rows] = last_bytes[first + counts - 1] + 1
        numbers, _, overlong = cursor.varints_at(starts)
        owners = np.repeat(rows, counts)
        if overlong is not None:
            cursor.fail(owners, overlong, BadValue.MALFORMED, f"{self.what}: a number has more than 64 bits")
        return self._checked(cursor, owners, numbers)

    def _checked(self, cursor: Cursor, rows: Rows, numbers: Ints) -> pa.Array:
        if self.is_int:
            over = (numbers < INT_MIN) | (numbers > INT_MAX)
            if over.any():
                cursor.fail(rows, over, BadValue.MALFORMED, f"{self.what}: an int has more than 32 bits")
                numbers = np.where(over, 0, numbers)
        array, unfit = self.convert(numbers)
        if unfit is not None:
            cursor.fail(rows, unfit, BadValue.WRONG_TYPE, f"{self.what}: the number does not fit {self.type}")
        return array


def within(counts: Ints) -> Ints:
    """Return 0, 1, … for each count, one after the other."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclass(frozen=True)
class FloatNode:
    type: pa.DataType
    what: str
    size: int  # 4 or 8

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        starts, _ = cursor.starts_of(rows, self.size, self.what)
        return self.array(cursor, starts)

    def array(self, cursor: Cursor, starts: Ints) -> pa.Array:
        numbers = cursor.matrix(starts, self.size).view(f"<f{self.size}").ravel()
        return pa.array(numbers).cast(self.type)


@dataclass(frozen=True)
class BytesNode:
    """Bytes, a string or a fixed type. A string's bytes must be UTF-8 if the reader wants a string."""

    type: pa.DataType
    what: str
    size: int = 0  # of a fixed type

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        found = cursor.slices(*self.bounds(cursor, rows))
        return self._text(cursor, rows, found) if pa.types.is_string(self.type) else found

    def bounds(self, cursor: Cursor, rows: Rows) -> tuple[Ints, Ints]:
        lengths = self.size or cursor.longs(rows, self.what)
        return cursor.starts_of(rows, lengths, self.what)

    def _text(self, cursor: Cursor, rows: Rows, found: pa.Array) -> pa.Array:
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = np.array([not _is_utf8(each) for each in found.to_pylist()], np.bool_)
            cursor.fail(rows, wrong, BadValue.INVALID_UTF8, f"{self.what}: a string is not valid UTF-8")
            return pa.array(found.to_pylist(), mask=wrong, type=pa.binary()).cast(pa.string())


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class DecimalNode:
    """A decimal, stored as a two's complement number of up to 16 bytes, the highest first."""

    type: pa.DataType
    what: str
    scale: int  # the writer's
    inner: BytesNode

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        starts, sizes = self.inner.bounds(cursor, rows)
        fits = (sizes > 0) & (sizes <= 16)
        cursor.fail(rows, ~fits, BadValue.WRONG_TYPE, f"{self.what}: the decimal has no bytes, or more than 16")
        # The last byte first, which is the order of Arrow; bytes that are not there repeat the sign.
        place = np.arange(16)
        index = np.maximum(starts[:, None] + sizes[:, None] - 1 - place, 0)
        sign = np.where(cursor.data[starts] & 0x80, 0xFF, 0).astype(np.uint8)
        data = np.where(place < sizes[:, None], cursor.data[index], sign[:, None])
        data[~fits] = 0
        widest = pa.decimal128(38, self.scale)
        numbers = pa.Array.from_buffers(widest, len(starts), [None, pa.py_buffer(np.ascontiguousarray(data))])
        try:
            return numbers.cast(self.type)
        except pa.ArrowInvalid:
            limit = 10 ** (self.type.precision - self.type.scale)
            kept = [None if abs(each) >= limit else each for each in numbers.to_pylist()]
            over = np.array([each is None for each in kept], np.bool_)
            cursor.fail(rows, over, BadValue.WRONG_TYPE, f"{self.what}: the number does not fit {self.type}")
            return pa.array(kept, self.type)


@dataclass(frozen=True)
class EnumNode:
    """`symbols` has None for a symbol of the writer that the reader does not know."""

    what: str
    symbols: tuple[str | None, ...]
    type: pa.DataType = pa.string()  # noqa: RUF009

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        index = cursor.longs(rows, self.what)
        over = (index < 0) | (index >= len(self.symbols))
        if over.any():
            cursor.fail(rows, over, BadValue.MALFORMED, f"{self.what}: the enum has no symbol of that number")
            index = np.where(over, 0, index)
        unknown = np.array([each is None for each in self.symbols], np.bool_)[index]
        message = f"{self.what}: the enum's symbol is not in the reader's schema"
        cursor.fail(rows, unknown, BadValue.INCOMPATIBLE_SCHEMA, message)
        return pa.array(self.symbols, pa.string()).take(pa.array(index))


@dataclass(frozen=True)
class UnionNode:
    """The writer's union. All branches give the same type of array, NULL included."""

    type: pa.DataType
    what: str
    branches: tuple[Node, ...]

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        chosen = cursor.longs(rows, self.what)
        over = (chosen < 0) | (chosen >= len(self.branches))
        if over.any():
            cursor.fail(rows, over, BadValue.MALFORMED, f"{self.what}: the union has no branch of that number")
            chosen = np.where(over, 0, chosen)
        pieces: list[pa.Array] = []
        where = np.zeros(len(chosen), np.int64)
        absent = np.zeros(len(chosen), np.bool_)
        count = 0
        for number, node in enumerate(self.branches):
            mask = chosen == number
            if isinstance(node, NullNode):
                absent |= mask
            elif mask.all():
                return node.read(cursor, rows)
            elif mask.any():
                found = np.flatnonzero(mask)
                pieces.append(node.read(cursor, subset(rows, found)))
                where[found] = np.arange(count, count + len(found))
                count += len(found)
        if not pieces:
            return pa.nulls(len(chosen), self.type)
        return joined(pieces, self.type).take(pa.array(where, mask=absent))


@dataclass(frozen=True)
class MemberNode:
    """One branch as a member of the struct that stands for a union of several types."""

    type: pa.DataType
    member: int
    inner: Node

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        found = self.inner.read(cursor, rows)
        fields = [each.type for each in self.type]
        members = [found if n == self.member else pa.nulls(len(found), type) for n, type in enumerate(fields)]
        return pa.StructArray.from_arrays(members, fields=list(self.type))


@dataclass(frozen=True)
class RecordNode:
    """The writer's fields in their order. `places` says which of them each column of the reader is."""

    type: pa.DataType
    fields: tuple[Node, ...]
    places: tuple[int, ...]

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        columns = self.columns(cursor, rows)
        if not columns:
            return pa.array([{}] * cursor.count(rows), self.type)
        return pa.StructArray.from_arrays(columns, fields=list(self.type))

    def columns(self, cursor: Cursor, rows: Rows) -> list[pa.Array]:
        found = [each.read(cursor, rows) for each in self.fields]
        return [found[place] for place in self.places]


def joined(pieces: Sequence[pa.Array], type: pa.DataType) -> pa.Array:
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays([each.cast(type) for each in pieces])
