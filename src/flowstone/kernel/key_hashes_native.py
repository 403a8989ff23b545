"""Native hashes of the keys of a batch's records.

Importing it raises ImportError if the library lacks the call.
"""

from __future__ import annotations

import ctypes
import os
from array import array

from flowstone.kernel.key_hashes_twin import RECORD_BYTES_MIN, KeyHashes
from flowstone.kernel.native import releasing_library as library
from flowstone.kernel.twin import out_of_bounds

# struct hash_keys_call of key_hashes.c: the arguments, then the results.
_Call = ctypes.c_int64 * 8
_SEED = array("Q", os.urandom(16))

try:
    _hash_keys = library.flowstone_hash_keys
except AttributeError as error:
    raise ImportError(f"the native kernel does not hash keys: {error}") from error
_hash_keys.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
_hash_keys.restype = None


def hash_keys(buffer: bytes, position: int, size: int, record_count: int) -> KeyHashes | None:
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    if not 0 <= record_count * RECORD_BYTES_MIN <= size:
        return None
    zeros = bytes(8 * record_count)
    deltas, hashes = array("q", zeros), array("Q", zeros)
    arrays = (each.buffer_info()[0] for each in (_SEED, deltas, hashes))
    call = _Call(position, size, record_count, *arrays, 0, 0)
    _hash_keys(buffer, ctypes.byref(call))
    status, is_dense = call[6:]
    if status:
        return None
    return KeyHashes(range(record_count) if is_dense else deltas.tolist(), hashes.tolist())
