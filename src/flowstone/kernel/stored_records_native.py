"""Native check, partial copy and key hashes of a stored batch's records.

Importing it raises ImportError if the library lacks the calls.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Sequence
from struct import Struct

from flowstone.kernel.native import _run as run
from flowstone.kernel.native import releasing_library as library
from flowstone.kernel.stored_records_twin import RECORD_BYTES_MIN, Chosen, KeyHashes
from flowstone.kernel.twin import RecordsStatus, out_of_bounds
from flowstone.types import Bytes

# struct check_stored_call of stored_records.c, copy_chosen_call of chosen_records.c, hash_keys_call of
# key_hashes.c: the arguments, then the results.
_Call = ctypes.c_int64 * 6
_CopyCall = ctypes.c_int64 * 10
_HashCall = ctypes.c_int64 * 8
_ARGUMENTS = Struct("=4q")
_STATUSES = tuple(RecordsStatus)
_SEED = array("Q", os.urandom(16))

try:
    _check = library.flowstone_check_stored
    _copy = library.flowstone_copy_chosen
    _hash_keys = library.flowstone_hash_keys
except AttributeError as error:
    raise ImportError(f"the native kernel does not check stored records: {error}") from error
_check.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
_check.restype = None
_copy.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
_copy.restype = None
_hash_keys.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
_hash_keys.restype = None


def check_stored(
    buffer: Bytes, position: int, size: int, record_count: int, last_offset_delta: int
) -> tuple[RecordsStatus, int]:
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    call = _Call()
    _ARGUMENTS.pack_into(call, 0, position, size, record_count, last_offset_delta)
    run(_check, buffer, call)
    return _STATUSES[call[4]], call[5]


def copy_chosen(
    buffer: bytes, position: int, size: int, record_count: int, ranges: Sequence[tuple[int, int]]
) -> Chosen | None:
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    pairs = array("q", [delta for pair in ranges for delta in pair])
    output = ctypes.create_string_buffer(size) if size else ctypes.create_string_buffer(1)
    call = _CopyCall(
        position, size, record_count, pairs.buffer_info()[0], len(ranges), ctypes.addressof(output), 0, 0, 0, 0
    )
    _copy(buffer, ctypes.byref(call))
    status, output_size, chosen_count, last_delta = call[6:]
    if status:
        return None
    return Chosen(bytes(memoryview(output)[:output_size]), chosen_count, last_delta)


def hash_keys(buffer: bytes, position: int, size: int, record_count: int) -> KeyHashes | None:
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    if not 0 <= record_count * RECORD_BYTES_MIN <= size:
        return None
    zeros = bytes(8 * record_count)
    deltas, hashes = array("q", zeros), array("Q", zeros)
    arrays = (each.buffer_info()[0] for each in (_SEED, deltas, hashes))
    call = _HashCall(position, size, record_count, *arrays, 0, 0)
    _hash_keys(buffer, ctypes.byref(call))
    status, is_dense = call[6:]
    if status:
        return None
    return KeyHashes(range(record_count) if is_dense else deltas.tolist(), hashes.tolist())
