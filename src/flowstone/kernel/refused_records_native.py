"""Native search for invalid records in a batch. Importing it raises ImportError if the library lacks the call."""

from __future__ import annotations

import ctypes
from struct import Struct

from flowstone.kernel.native import _run as run
from flowstone.kernel.native import releasing_library as library
from flowstone.kernel.refused_records_twin import RefusedRecord
from flowstone.kernel.twin import out_of_bounds
from flowstone.types import Bytes

# struct find_refused_call of refused_records.c: the arguments, the count, then the records found.
_ARGUMENTS = Struct("=8q")
_COUNT_INDEX = 8
_FOUND_INDEX = 9
_FOUND_FIELDS = 3

try:
    _find = library.flowstone_find_refused
except AttributeError as error:
    raise ImportError(f"the native kernel does not find refused records: {error}") from error
_find.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
_find.restype = None


def find_refused(
    buffer: Bytes,
    position: int,
    size: int,
    record_count: int,
    *,
    needs_key: bool,
    low_delta: int,
    high_delta: int,
    exempt_delta: int,
    limit: int,
) -> list[RefusedRecord]:
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    call = (ctypes.c_int64 * (_FOUND_INDEX + _FOUND_FIELDS * limit))()
    _ARGUMENTS.pack_into(call, 0, position, size, record_count, needs_key, low_delta, high_delta, exempt_delta, limit)
    run(_find, buffer, call)
    end = _FOUND_INDEX + _FOUND_FIELDS * call[_COUNT_INDEX]
    found = call[_FOUND_INDEX:end]
    return [
        RefusedRecord(index, bool(is_keyless), delta)
        for index, is_keyless, delta in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]
