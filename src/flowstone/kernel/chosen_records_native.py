"""Native copy of chosen records. Importing it raises ImportError if the library lacks the call."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

from flowstone.kernel.chosen_records_twin import Chosen
from flowstone.kernel.native import releasing_library as library
from flowstone.kernel.twin import out_of_bounds

# struct copy_chosen_call of chosen_records.c: the arguments, then the results.
_Call = ctypes.c_int64 * 10

try:
    _copy = library.flowstone_copy_chosen
except AttributeError as error:
    raise ImportError(f"the native kernel does not copy chosen records: {error}") from error
_copy.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
_copy.restype = None


def copy_chosen(
    buffer: bytes, position: int, size: int, record_count: int, ranges: Sequence[tuple[int, int]]
) -> Chosen | None:
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    pairs = array("q", [delta for pair in ranges for delta in pair])
    output = ctypes.create_string_buffer(size) if size else ctypes.create_string_buffer(1)
    call = _Call(
        position, size, record_count, pairs.buffer_info()[0], len(ranges), ctypes.addressof(output), 0, 0, 0, 0
    )
    _copy(buffer, ctypes.byref(call))
    status, output_size, chosen_count, last_delta = call[6:]
    if status:
        return None
    return Chosen(bytes(memoryview(output)[:output_size]), chosen_count, last_delta)
