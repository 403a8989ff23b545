"""Preallocation of disk space beyond a file's end, without changing its size. Optional: everything works without it.

A flush into preallocated space does not have to allocate blocks, which is a large part of its time on ext4 and XFS.
"""

from __future__ import annotations

import ctypes
import os

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE


def reserve(descriptor: int, position: int, count: int) -> None:
    """Preallocate the range; do nothing if the disk is full or the file system does not support it.

    A later write reports a full disk.
    """
    if _fallocate is not None:
        _fallocate(descriptor, _KEEP_SIZE, position, count)


def _fallocate_call() -> ctypes._NamedFuncPointer | None:
    """Return fallocate(2) as a ctypes function, or None.

    os.posix_fallocate changes the size, and writes zeros if the file system does not support it.
    """
    if os.uname().sysname != "Linux":
        return None
    call = ctypes.CDLL(None).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    call.restype = ctypes.c_int
    return call


_fallocate = _fallocate_call()
