"""What the page cache holds: questions about a file's bytes that never wait for the disk. Linux answers them all."""

from __future__ import annotations

import ctypes
import errno
import os

_SYS_CACHESTAT = 451


def read_nowait(descriptor: int, buffer: bytearray, position: int) -> int | None:
    """Bytes read from the page cache, -1 if the first of them is not there, None if the system cannot tell."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        return os.preadv(descriptor, [buffer], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return -1
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return None
        raise


class _CachestatRange(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Cachestat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")]


def _cachestat_call() -> ctypes._NamedFuncPointer | None:
    if os.uname().sysname != "Linux":
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = [ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    call.restype = ctypes.c_long
    return call


_cachestat = _cachestat_call()


def cached_pages(descriptor: int, position: int, count: int) -> int | None:
    """How many pages of the range are in the page cache (Linux 6.5 and later); None if the system cannot tell."""
    global _cachestat
    if _cachestat is None:
        return None
    wanted, result = _CachestatRange(position, max(count, 1)), _Cachestat()
    if _cachestat(_SYS_CACHESTAT, descriptor, ctypes.byref(wanted), ctypes.byref(result), 0) != 0:
        _cachestat = None
        return None
    return int(result.cache)
