"""Room for a file's next bytes, reserved beyond its end; its size stays as it is. Only a help: without it, all works.

A flush of bytes whose room is reserved need not allocate any: on ext4 and XFS that is a good part of what it takes.
"""

from __future__ import annotations

import ctypes
import os

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE


def reserve(descriptor: int, position: int, count: int) -> None:
    """Where the disk is full, or knows no such thing, nothing happens: the write that follows will tell."""
    if _fallocate is not None:
        _fallocate(descriptor, _KEEP_SIZE, position, count)


def _fallocate_call() -> ctypes._NamedFuncPointer | None:
    """os.posix_fallocate changes the size, and writes zeros where the file system cannot."""
    if os.uname().sysname != "Linux":
        return None
    call = ctypes.CDLL(None).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    call.restype = ctypes.c_int
    return call


_fallocate = _fallocate_call()
