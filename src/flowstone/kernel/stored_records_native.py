"""Native check of a stored batch's records. Importing it raises ImportError if the library lacks the call."""

from __future__ import annotations

import ctypes
from struct import Struct

from flowstone.kernel.native import _run as run
from flowstone.kernel.native import releasing_library as library
from flowstone.kernel.twin import RecordsStatus, out_of_bounds
from flowstone.types import Bytes

# struct check_stored_call of stored_records.c: the arguments, then the results.
_Call = ctypes.c_int64 * 6
_ARGUMENTS = Struct("=4q")
_STATUSES = tuple(RecordsStatus)

try:
    _check = library.flowstone_check_stored
except AttributeError as error:
    raise ImportError(f"the native kernel does not check stored records: {error}") from error
_check.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
_check.restype = None


def check_stored(
    buffer: Bytes, position: int, size: int, record_count: int, last_offset_delta: int
) -> tuple[RecordsStatus, int]:
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    call = _Call()
    _ARGUMENTS.pack_into(call, 0, position, size, record_count, last_offset_delta)
    run(_check, buffer, call)
    return _STATUSES[call[4]], call[5]
