"""The columns from which batches are built and the argument blocks for C: the contract of batches.c and its twin.

Owns the layouts of `struct spread_call` and `struct build_call`. Columns are buffers in Arrow's layout and may be
slices of arrays: row 0 is value `first`. The module knows nothing of Arrow itself, of batch headers or of compression.

A slot is the number of a partition, counted over all target topics; the partitions of a topic have consecutive slots.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from flowstone.kernel.column_buffers import Buffer

_Int64 = ctypes.c_int64
_Pointer = ctypes.c_void_p


class RowStatus(IntEnum):
    """The defect of a row. Keep equal to `enum row_status` in batches.c."""

    GOOD = 0
    TOO_LARGE = 1  # it does not fit into any batch
    BAD_PARTITION = 2
    BAD_TIMESTAMP = 3  # negative
    NULL_HEADER_KEY = 4
    BAD_COLUMN = 5  # the column's offsets are outside its data


class BadRow(Exception):
    """A row that cannot become a record, and the reason; callers turn it into a message."""

    def __init__(self, status: RowStatus, row: int, needed_bytes: int = 0) -> None:
        super().__init__(f"row {row}: {status.name}")
        self.status, self.row, self.needed_bytes = status, row, needed_bytes


class BinaryInput(NamedTuple):
    """A column of binary values. Without offsets every value is null; without validity none is."""

    offsets: Buffer | None = None
    validity: Buffer | None = None
    data: Buffer | None = None
    first: int = 0
    is_large: bool = False  # offsets are int64


class NumberInput(NamedTuple):
    """A column of numbers. Without values every number is null; without validity none is."""

    values: Buffer | None = None
    validity: Buffer | None = None
    first: int = 0


class HeadersInput(NamedTuple):
    """A column of header lists: int32 offsets into the keys and values. Without offsets no row has headers."""

    offsets: Buffer | None = None
    validity: Buffer | None = None
    first: int = 0
    header_count: int = 0
    key: BinaryInput = BinaryInput()
    value: BinaryInput = BinaryInput()


class Rows(NamedTuple):
    row_count: int
    value: BinaryInput
    key: BinaryInput = BinaryInput()
    topic: NumberInput = NumberInput()  # int32: the topic's number, never null; without values all are of topic 0
    partition: NumberInput = NumberInput()  # int32: unless null, it overrides the key
    timestamp: NumberInput = NumberInput()  # int64, milliseconds
    headers: HeadersInput = HeadersInput()


class Slots:
    """The target topics by number: the slots of their partitions, and the current slot of rows without a key."""

    def __init__(self, partition_counts: Sequence[int], keyless: Sequence[tuple[int, int]], keyless_bytes_max: int):
        """Number the partitions of all topics; `keyless` has the current partition and its bytes for rows without a
        key.
        """
        if not all(count > 0 for count in partition_counts):
            raise ValueError(f"a topic without partitions: {list(partition_counts)}")
        numbers = _Int64 * len(partition_counts)
        self.topic_count = len(partition_counts)
        self.partition_counts = numbers(*partition_counts)
        self.first_slots = numbers(*(sum(partition_counts[:topic]) for topic in range(self.topic_count)))
        self.slot_count = sum(partition_counts)
        wrapped = (partition % count for (partition, _), count in zip(keyless, partition_counts, strict=True))
        self.keyless_partitions = numbers(*wrapped)
        self.keyless_bytes = numbers(*(size_bytes for _, size_bytes in keyless))
        self.keyless_bytes_max = keyless_bytes_max


class Spread(NamedTuple):
    """Rows grouped by slot; the rows of a slot are in their original order."""

    order: ctypes.Array[ctypes.c_int32]
    slot_ends: ctypes.Array[ctypes.c_int64]  # the end of each slot's rows in `order`
    slot_of_row: ctypes.Array[ctypes.c_int32]


class Built(NamedTuple):
    """The result of a build: the written records, and as `next` the index in `order` of the first row not written."""

    next: int
    size_bytes: int
    record_count: int
    base_timestamp: int
    max_timestamp: int


class _BinaryInput(ctypes.Structure):
    _fields_ = (
        ("offsets", _Pointer),
        ("validity", _Pointer),
        ("data", _Pointer),
        ("first", _Int64),
        ("is_large", _Int64),
        ("data_bytes", _Int64),
    )


class _NumberInput(ctypes.Structure):
    _fields_ = (("values", _Pointer), ("validity", _Pointer), ("first", _Int64))


class _HeadersInput(ctypes.Structure):
    _fields_ = (
        ("offsets", _Pointer),
        ("validity", _Pointer),
        ("first", _Int64),
        ("header_count", _Int64),
        ("key", _BinaryInput),
        ("value", _BinaryInput),
    )


class SpreadCall(ctypes.Structure):
    status: int
    row: int
    _fields_ = (
        *((name, _Int64) for name in ("row_count", "topic_count", "slot_count", "keyless_bytes_max", "status", "row")),
        ("key", _BinaryInput),
        ("value", _BinaryInput),
        ("topic", _NumberInput),
        ("partition", _NumberInput),
        *((name, _Pointer) for name in ("partition_counts", "first_slots", "keyless_partitions", "keyless_bytes")),
        *((name, _Pointer) for name in ("slots", "order", "slot_ends")),
    )


class BuildCall(ctypes.Structure):
    next: int
    end: int
    capacity_bytes: int
    now_ms: int
    status: int
    row: int
    needed_bytes: int
    size_bytes: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    _fields_ = (
        *((name, _Int64) for name in ("next", "end", "capacity_bytes", "now_ms", "status", "row", "needed_bytes")),
        *((name, _Int64) for name in ("size_bytes", "record_count", "base_timestamp", "max_timestamp")),
        ("order", _Pointer),
        ("key", _BinaryInput),
        ("value", _BinaryInput),
        ("timestamp", _NumberInput),
        ("headers", _HeadersInput),
    )


def check_bounds(row_count: int, first: int, end: int, out: bytearray, position: int, capacity_bytes: int) -> None:
    """Raise ValueError unless the arguments of a build lie within their buffers.

    This is not an `assert`, because -O removes asserts and C would then write past the buffer.
    """
    if not (0 <= first <= end <= row_count and position >= 0 and 0 <= capacity_bytes <= len(out) - position and out):
        raise ValueError(f"rows [{first}, {end}) of {row_count}, {capacity_bytes} bytes at {position} of {len(out)}")


def check_buffers(rows: Rows) -> None:
    """Raise ValueError if a column's buffers are too small for its rows: C would read past them."""
    for binary in (rows.key, rows.value):
        _check_binary(binary, rows.row_count)
    for numbers, item_bytes in ((rows.topic, 4), (rows.partition, 4), (rows.timestamp, 8)):
        if numbers.values is not None:
            _check_column(numbers.values, numbers.validity, numbers.first, rows.row_count, item_bytes, 0)
    headers = rows.headers
    if headers.offsets is not None:
        _check_column(headers.offsets, headers.validity, headers.first, rows.row_count, 4, 1)
        for binary in (headers.key, headers.value):
            _check_binary(binary, headers.header_count)


def _check_binary(column: BinaryInput, count: int) -> None:
    if column.offsets is not None:
        _check_column(column.offsets, column.validity, column.first, count, 8 if column.is_large else 4, 1)


def _check_column(values: Buffer, validity: Buffer | None, first: int, count: int, item_bytes: int, more: int) -> None:
    """Raise ValueError unless the buffer has values `first` to `first + count`, plus `more` (1 for offsets)."""
    if not count:
        return
    end = first + count
    if first < 0 or values.size < (end + more) * item_bytes or (validity is not None and validity.size * 8 < end):
        raise ValueError(f"a column of {values.size} bytes is too small for {count} values from number {first} on")


def binary_block(column: BinaryInput) -> _BinaryInput:
    offsets, validity, data = column[:3]
    size = data.size if data is not None else 0
    return _BinaryInput(_address(offsets), _address(validity), _address(data), column.first, column.is_large, size)


def number_block(column: NumberInput) -> _NumberInput:
    return _NumberInput(_address(column.values), _address(column.validity), column.first)


def headers_block(column: HeadersInput) -> _HeadersInput:
    key, value = binary_block(column.key), binary_block(column.value)
    return _HeadersInput(
        _address(column.offsets), _address(column.validity), column.first, column.header_count, key, value
    )


def _address(buffer: Buffer | None) -> int | None:
    return buffer.address if buffer is not None else None
