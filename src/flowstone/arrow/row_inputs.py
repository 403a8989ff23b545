"""Conversion of the columns of a `pyarrow.RecordBatch` to the kernel's buffers, without a copy if their type allows.

Owns the types that a column may have. A missing column, or one of type null, is null in every row.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flowstone.arrow.schema import HEADERS, HEADERS_TYPE
from flowstone.errors import FlowstoneError
from flowstone.kernel.batches import BinaryInput, HeadersInput, NumberInput, Rows

VALUE = "value"


class ColumnError(FlowstoneError):
    """A column is missing or has a type that records do not support. The message is for users."""


def rows_of(batch: Any, topic: NumberInput) -> Rows:
    """Return the kernel's view of the batch, which must be kept alive. Raises ColumnError if a column is invalid."""
    names = batch.schema.names
    if VALUE not in names:
        raise ColumnError(f"rows need a column {VALUE}; these have {', '.join(names) or 'none'}")
    batch.validate()  # the kernel relies on the sizes of buffers, but not on their contents
    columns = {name: batch.column(name) for name in names}
    return Rows(
        row_count=batch.num_rows,
        value=_binary_input(VALUE, columns[VALUE]),
        key=_binary_input("key", columns.get("key")),
        topic=topic,
        partition=_partition_input(columns.get("partition")),
        timestamp=_timestamp_input(columns.get("timestamp")),
        headers=_headers_input(columns.get(HEADERS)),
    )


def number_input(column: Any) -> NumberInput:
    """Return a view of an array of numbers."""
    validity, values = column.buffers()
    return NumberInput(values, validity, column.offset)


def _binary_input(name: str, column: Any) -> BinaryInput:
    if column is None or pa.types.is_null(column.type):
        return BinaryInput()
    kind = column.type
    is_large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not is_large and not pa.types.is_binary(kind) and not pa.types.is_string(kind):
        column, is_large = _cast(name, column, pa.large_binary(), "binary or string"), True
    validity, offsets, data = column.buffers()
    return BinaryInput(offsets, validity, data, column.offset, is_large)


def _partition_input(column: Any) -> NumberInput:
    if column is None or pa.types.is_null(column.type):
        return NumberInput()
    if not pa.types.is_int32(column.type):
        if not pa.types.is_integer(column.type):
            raise _wrong_type("partition", column, "int32")
        column = _cast("partition", column, pa.int32(), "int32")
    return number_input(column)


def _timestamp_input(column: Any) -> NumberInput:
    if column is None or pa.types.is_null(column.type):
        return NumberInput()
    if not pa.types.is_timestamp(column.type):
        raise _wrong_type("timestamp", column, "timestamp")
    # Kafka's timestamps are in milliseconds: finer parts are truncated.
    return number_input(column.cast(pa.timestamp("ms", column.type.tz), safe=False))


def _headers_input(column: Any) -> HeadersInput:
    if column is None or pa.types.is_null(column.type):
        return HeadersInput()
    if column.type != HEADERS_TYPE:
        column = _cast(HEADERS, column, HEADERS_TYPE, "array<struct<key: string, value: binary>>")
    validity, offsets = column.buffers()[:2]
    headers = column.values
    keys, values = headers.flatten()  # a header that is null itself has a null key
    return HeadersInput(
        offsets, validity, column.offset, len(headers), _binary_input(HEADERS, keys), _binary_input(HEADERS, values)
    )


def _cast(name: str, column: Any, kind: Any, expected: str) -> Any:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _wrong_type(name, column, expected) from error


def _wrong_type(name: str, column: Any, expected: str) -> ColumnError:
    return ColumnError(f"the column {name} is {column.type}, and has to be {expected}")
