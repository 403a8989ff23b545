"""The kernel through ctypes: gets a buffer's address, makes the call, reads the results.

Importing this module raises ImportError if the library is missing, cannot be loaded, or has another call layout.

A call passes only two pointers: the buffer, and a block of int64 values with arguments and results. Converting one
argument costs ctypes 80 ns, packing all of them into a block 100 ns. Each call has its own block, so any thread may
call.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any

from flowstone.kernel.twin import RecordsCheck, RecordsStatus, out_of_bounds
from flowstone.types import Bytes

LAYOUT_VERSION = 2  # flowstone_kernel_layout_version of library.c
GIL_RELEASE_BYTES = 16384  # a smaller payload is checked in 1 to 2 us, less than reacquiring the GIL may take
COPY_BYTES_MAX = 4096  # copying a smaller buffer takes less time than getting its address

_STATUSES = tuple(RecordsStatus)
_PY_BUF_SIMPLE = 0

# struct check_records_call and struct find_timestamp_call of records.c: the arguments, then the results.
_CHECK_ARGUMENTS = Struct("=3q")
_CHECK_RESULTS = Struct("=6q")
_CheckCall = ctypes.c_int64 * 9
_FIND_ARGUMENTS = Struct("=5q")
_FIND_RESULTS = Struct("=2q")
_FindCall = ctypes.c_int64 * 7

# Looked up once, because they are called for every produced batch.
_pack_check = _CHECK_ARGUMENTS.pack_into
_unpack_check = _CHECK_RESULTS.unpack_from
_pack_find = _FIND_ARGUMENTS.pack_into
_unpack_find = _FIND_RESULTS.unpack_from
_export = ctypes.c_char.from_buffer
_addressof = ctypes.addressof

_KernelFunction = Callable[[Any, Any], None]


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer, which is part of the stable ABI since 3.11."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def _load() -> tuple[ctypes.CDLL, ctypes.PyDLL]:
    path = str(Path(__file__).with_name("_kernel.dylib" if sys.platform == "darwin" else "_kernel.so"))
    try:
        library = ctypes.CDLL(path)
        version = ctypes.c_int64.in_dll(library, "flowstone_kernel_layout_version").value
    except (OSError, ValueError) as error:
        raise ImportError(f"the native kernel does not load: {error}") from error
    if version != LAYOUT_VERSION:
        raise ImportError(f"the native kernel has layout {version}, not {LAYOUT_VERSION}: build it again")
    return library, ctypes.PyDLL(path)


def _function(library: ctypes.CDLL, name: str) -> _KernelFunction:
    function = library[name]
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    function.restype = None
    return function


releasing_library, holding_library = _load()
_CHECK_RECORDS, _FIND_TIMESTAMP = (
    tuple(_function(library, name) for library in (holding_library, releasing_library))
    for name in ("flowstone_check_records", "flowstone_find_timestamp")
)

_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.c_void_p,)
_release_buffer.restype = None


def check_records(buffer: Bytes, position: int, size: int, record_count: int) -> RecordsCheck:
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    call = _CheckCall()
    _pack_check(call, 0, position, size, record_count)
    _run(_CHECK_RECORDS[size >= GIL_RELEASE_BYTES], buffer, call)
    status, record_index, null_keys, min_delta, max_delta, max_index = _unpack_check(call, _CHECK_ARGUMENTS.size)
    return RecordsCheck(_STATUSES[status], record_index, null_keys, min_delta, max_delta, max_index)


def find_timestamp(
    buffer: Bytes, position: int, size: int, record_count: int, first_offset_delta: int, target_delta: int
) -> tuple[int, int] | None:
    if position < 0 or size < 0 or position + size > len(buffer):
        raise out_of_bounds(buffer, position, size)
    call = _FindCall()
    _pack_find(call, 0, position, size, record_count, first_offset_delta, target_delta)
    _run(_FIND_TIMESTAMP[size >= GIL_RELEASE_BYTES], buffer, call)
    offset_delta, timestamp_delta = _unpack_find(call, _FIND_ARGUMENTS.size)
    return (offset_delta, timestamp_delta) if offset_delta >= 0 else None


def _run(function: _KernelFunction, buffer: Bytes, call: Any) -> None:
    """Call `function` with the buffer's address; the buffer is held or exported during the call, so it cannot move."""
    if type(buffer) is bytes:
        function(buffer, call)
    elif not buffer:
        function(b"", call)
    elif type(buffer) is memoryview and buffer.readonly:
        _run_read_only(function, buffer, call)
    else:
        export = _export(buffer)
        function(_addressof(export), call)


def _run_read_only(function: _KernelFunction, buffer: memoryview, call: Any) -> None:
    """Call `function` with a read-only buffer, whose address CPython returns: ctypes exports only writable ones."""
    if buffer.nbytes <= COPY_BYTES_MAX:
        function(bytes(buffer), call)
        return
    view = _PyBuffer()
    _get_buffer(buffer, ctypes.byref(view), _PY_BUF_SIMPLE)
    try:
        function(view.buf, call)
    finally:
        _release_buffer(ctypes.byref(view))
