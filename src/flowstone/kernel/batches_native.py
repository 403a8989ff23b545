"""Native conversion of columns to record batches. Importing it raises ImportError if the library lacks the calls.

Columns are passed by address, so the caller must keep their buffers alive during the call. The calls release the GIL.
"""

from __future__ import annotations

import ctypes

from flowstone.kernel.native import releasing_library as library
from flowstone.kernel.row_columns import (
    BadRow,
    BuildCall,
    Built,
    Rows,
    RowStatus,
    Slots,
    Spread,
    SpreadCall,
    binary_block,
    check_bounds,
    check_buffers,
    headers_block,
    number_block,
)

try:
    _spread = library.flowstone_spread_rows
    _build = library.flowstone_build_records
except AttributeError as error:
    raise ImportError(f"the native kernel does not build batches: {error}") from error
_spread.argtypes, _spread.restype = (ctypes.c_void_p,), None
_build.argtypes, _build.restype = (ctypes.c_void_p, ctypes.c_void_p), None

_addressof = ctypes.addressof


def spread_rows(rows: Rows, slots: Slots) -> Spread:
    check_buffers(rows)
    row_numbers = ctypes.c_int32 * rows.row_count
    spread = Spread(row_numbers(), (ctypes.c_int64 * slots.slot_count)(), row_numbers())
    call = SpreadCall(
        row_count=rows.row_count,
        topic_count=slots.topic_count,
        slot_count=slots.slot_count,
        keyless_bytes_max=slots.keyless_bytes_max,
        key=binary_block(rows.key),
        value=binary_block(rows.value),
        topic=number_block(rows.topic),
        partition=number_block(rows.partition),
        partition_counts=_addressof(slots.partition_counts),
        first_slots=_addressof(slots.first_slots),
        keyless_partitions=_addressof(slots.keyless_partitions),
        keyless_bytes=_addressof(slots.keyless_bytes),
        slots=_addressof(spread.slot_of_row),
        order=_addressof(spread.order),
        slot_ends=_addressof(spread.slot_ends),
    )
    _spread(ctypes.byref(call))
    if call.status:
        raise BadRow(RowStatus(call.status), call.row)
    return spread


class RecordBuilder:
    """Builder of the records of one `Spread`. `now_ms` is the timestamp of rows without a timestamp."""

    def __init__(self, rows: Rows, spread: Spread, now_ms: int) -> None:
        check_buffers(rows)
        self._held = (rows, spread)
        self._row_count = rows.row_count
        self._call = BuildCall(
            now_ms=now_ms,
            order=_addressof(spread.order),
            key=binary_block(rows.key),
            value=binary_block(rows.value),
            timestamp=number_block(rows.timestamp),
            headers=headers_block(rows.headers),
        )

    def build(self, first: int, end: int, out: bytearray, position: int, capacity_bytes: int) -> Built:
        check_bounds(self._row_count, first, end, out, position, capacity_bytes)
        call = self._call
        call.next, call.end, call.capacity_bytes = first, end, capacity_bytes
        export = ctypes.c_char.from_buffer(out)  # while it is there, the bytearray cannot move
        _build(_addressof(export) + position, ctypes.byref(call))
        if call.status:
            raise BadRow(RowStatus(call.status), call.row, call.needed_bytes)
        return Built(call.next, call.size_bytes, call.record_count, call.base_timestamp, call.max_timestamp)
