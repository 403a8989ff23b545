"""The buffers of the columns into which records are decoded, their fill levels, and the argument block for C.

Owns the layout of `struct decode_columns_call` (columns.c) and the memory that it points to. An allocator provides the
memory, for example `pyarrow.allocate_buffer`. The module does not know Arrow and does not limit the size of columns:
the caller decides whether to grow them.

A buffer has the layout of Arrow's binary columns: int32 offsets, one more than there are values; validity bits, least
significant first; data. Only requested columns have buffers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, Protocol

OFFSET_BYTES = 4  # the maximum of an int32 offset, as in Arrow's binary and list types
INT64_BYTES = 8
INT32_MAX = (1 << 31) - 1
NO_DELTA = -1  # below the first offset delta of any batch


class Buffer(Protocol):
    """Memory with an address, which also supports the buffer protocol, such as a `pyarrow.Buffer`."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...


Allocate = Callable[[int], Buffer]


class Full(IntEnum):
    """The column that has no space for the next record. Keep equal to `enum full` in columns.c."""

    NOT_FULL = 0
    ROWS = 1
    KEY = 2
    VALUE = 3
    HEADERS = 4
    HEADER_KEY = 5
    HEADER_VALUE = 6


# Initial capacity of each column, in bytes or headers.
Capacities = Mapping[Full, int]


class BinaryColumn(ctypes.Structure):
    """Mirror of `struct binary_column` in columns.c."""

    offsets: int | None
    validity: int | None
    data: int | None
    size_bytes: int
    capacity_bytes: int
    null_count: int
    _fields_ = (
        ("offsets", ctypes.c_void_p),
        ("validity", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("size_bytes", ctypes.c_int64),
        ("capacity_bytes", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
    )


class Batch(NamedTuple):
    """Header values of the batch being decoded, and the offsets to decode: the first part of the call's block."""

    size: int  # of the payload, decompressed
    record_count: int
    base_offset: int
    last_offset_delta: int
    base_timestamp: int  # with LogAppendTime the only one: max_timestamp
    uses_log_append_time: int
    start_offset: int
    end_offset: int


_PROGRESS_FIELDS = ("position", "record_index", "last_delta")
_RESULT_FIELDS = ("status", "full", "needed")
_FILL_FIELDS = ("row_count", "row_capacity", "header_count", "header_capacity", "rows_without_headers")
_BATCH = Struct(f"={len(Batch._fields) + len(_PROGRESS_FIELDS)}q")


class DecodeCall(ctypes.Structure):
    """Mirror of `struct decode_columns_call` in columns.c."""

    size: int
    record_count: int
    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    uses_log_append_time: int
    start_offset: int
    end_offset: int
    position: int
    record_index: int
    last_delta: int
    status: int
    full: int
    needed: int
    row_count: int
    row_capacity: int
    header_count: int
    header_capacity: int
    rows_without_headers: int
    offsets: int | None
    timestamps: int | None
    header_offsets: int | None
    header_validity: int | None
    key: BinaryColumn
    value: BinaryColumn
    header_key: BinaryColumn
    header_value: BinaryColumn
    _fields_ = (
        *((name, ctypes.c_int64) for name in (*Batch._fields, *_PROGRESS_FIELDS, *_RESULT_FIELDS, *_FILL_FIELDS)),
        ("offsets", ctypes.c_void_p),
        ("timestamps", ctypes.c_void_p),
        ("header_offsets", ctypes.c_void_p),
        ("header_validity", ctypes.c_void_p),
        ("key", BinaryColumn),
        ("value", BinaryColumn),
        ("header_key", BinaryColumn),
        ("header_value", BinaryColumn),
    )


class BinaryBuffers:
    """The buffers of one binary column; `state` is the column's part of the call's block."""

    offsets: Buffer
    validity: Buffer
    data: Buffer

    def __init__(self, state: BinaryColumn, value_capacity: int, data_bytes: int, allocate: Allocate) -> None:
        self.state = state
        self.state.size_bytes = self.state.null_count = 0
        self._allocate = allocate
        self._adopt(
            allocate((value_capacity + 1) * OFFSET_BYTES), allocate(bitmap_bytes(value_capacity)), allocate(data_bytes)
        )

    def hold_values(self, value_capacity: int, value_count: int) -> None:
        offsets = self._allocate((value_capacity + 1) * OFFSET_BYTES)
        validity = self._allocate(bitmap_bytes(value_capacity))
        _copy(offsets, self.offsets, (value_count + 1) * OFFSET_BYTES)
        _copy(validity, self.validity, bitmap_bytes(value_count))
        self._adopt(offsets, validity, self.data)

    def hold_data(self, data_bytes: int) -> None:
        data = self._allocate(data_bytes)
        _copy(data, self.data, self.state.size_bytes)
        self._adopt(self.offsets, self.validity, data)

    def _adopt(self, offsets: Buffer, validity: Buffer, data: Buffer) -> None:
        self.offsets, self.validity, self.data = offsets, validity, data
        self.state.offsets, self.state.validity, self.state.data = offsets.address, validity.address, data.address
        self.state.capacity_bytes = data.size


class Columns:
    """The requested columns of `key`, `value`, `offset`, `timestamp` and `headers`, for up to `row_capacity` rows."""

    offsets: Buffer | None = None
    timestamps: Buffer | None = None
    header_offsets: Buffer | None = None
    header_validity: Buffer | None = None

    def __init__(self, wanted: Collection[str], row_capacity: int, capacities: Capacities, allocate: Allocate) -> None:
        self._wanted, self._row_capacity, self._allocate = frozenset(wanted), row_capacity, allocate
        self.call = DecodeCall()
        self.binaries: dict[Full, BinaryBuffers] = {}
        self.renew(capacities)

    def renew(self, capacities: Capacities) -> None:
        """Replace the buffers by new, empty ones; the old buffers stay valid for those who hold them.

        Decoding of a partly decoded batch continues in the new buffers.
        """
        call, rows, allocate = self.call, self._row_capacity, self._allocate
        call.row_count = call.header_count = call.rows_without_headers = 0
        call.row_capacity = rows
        if "offset" in self._wanted:
            self.offsets = allocate(rows * INT64_BYTES)
            call.offsets = self.offsets.address
        if "timestamp" in self._wanted:
            self.timestamps = allocate(rows * INT64_BYTES)
            call.timestamps = self.timestamps.address
        if "key" in self._wanted:
            self.binaries[Full.KEY] = BinaryBuffers(call.key, rows, capacities[Full.KEY], allocate)
        if "value" in self._wanted:
            self.binaries[Full.VALUE] = BinaryBuffers(call.value, rows, capacities[Full.VALUE], allocate)
        if "headers" in self._wanted:
            self._renew_headers(capacities)

    def _renew_headers(self, capacities: Capacities) -> None:
        call, allocate = self.call, self._allocate
        self.header_offsets = allocate((self._row_capacity + 1) * OFFSET_BYTES)
        self.header_validity = allocate(bitmap_bytes(self._row_capacity))
        call.header_offsets, call.header_validity = self.header_offsets.address, self.header_validity.address
        call.header_capacity = capacities[Full.HEADERS]
        for full, state in ((Full.HEADER_KEY, call.header_key), (Full.HEADER_VALUE, call.header_value)):
            self.binaries[full] = BinaryBuffers(state, call.header_capacity, capacities[full], allocate)

    def begin(self, batch: Batch) -> None:
        """Start decoding the payload of `batch`."""
        _BATCH.pack_into(self.call, 0, *batch, 0, 0, NO_DELTA)

    def used(self, full: Full) -> int:
        """Return how many bytes, or headers, the column contains."""
        return self.call.header_count if full is Full.HEADERS else self.binaries[full].state.size_bytes

    def capacity(self, full: Full) -> int:
        return self.call.header_capacity if full is Full.HEADERS else self.binaries[full].state.capacity_bytes

    def grow(self, full: Full, capacity: int) -> None:
        """Enlarge the column to a total capacity of `capacity` bytes, or headers."""
        assert self.used(full) <= capacity <= INT32_MAX, f"{full.name} of {capacity}"
        if full is Full.HEADERS:
            for column in (Full.HEADER_KEY, Full.HEADER_VALUE):
                self.binaries[column].hold_values(capacity, self.call.header_count)
            self.call.header_capacity = capacity
        else:
            self.binaries[full].hold_data(capacity)


def bitmap_bytes(value_count: int) -> int:
    return (value_count + 7) // 8


def _copy(to: Buffer, of: Buffer, size_bytes: int) -> None:
    memoryview(to)[:size_bytes] = memoryview(of)[:size_bytes]
