"""Native decoding of records into columns. Importing it raises ImportError if the library lacks the call.

The payload is passed by address, because ctypes passes a known address without conversion. The call releases the GIL.
"""

from __future__ import annotations

import ctypes

from flowstone.kernel.column_buffers import Buffer, Columns
from flowstone.kernel.columns_twin import check_bounds
from flowstone.kernel.native import releasing_library as library

try:
    _decode = library.flowstone_decode_columns
except AttributeError as error:
    raise ImportError(f"the native kernel does not decode columns: {error}") from error
_decode.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
_decode.restype = None


def decode_columns(payload: Buffer, position: int, columns: Columns) -> None:
    check_bounds(payload, position, columns.call.size)
    _decode(payload.address + position, ctypes.byref(columns.call))
