"""The page cache: queries that never block on the disk, read-ahead, write-back and eviction.

All of these are Linux system calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from contextlib import suppress

# Pages evicted per step, a quarter of a millisecond of system time, and the pause between steps.
EVICT_BYTES = 2 << 20
EVICT_PAUSE_S = 0.001

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # not on macOS
_SYS_CACHESTAT = 451
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE


def read_nowait(descriptor: int, buffer: bytearray, position: int) -> int | None:
    """Read from the page cache; return the number of bytes, -1 if the first is not cached, None if unsupported."""
    if _NOWAIT is None:
        return None
    try:
        return os.preadv(descriptor, [buffer], position, _NOWAIT)
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


_IS_LINUX = os.uname().sysname == "Linux"


def _cachestat_call() -> ctypes._NamedFuncPointer | None:
    if not _IS_LINUX:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = [ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    call.restype = ctypes.c_long
    return call


_cachestat = _cachestat_call()


def cached_pages(descriptor: int, position: int, count: int) -> int | None:
    """Return how many pages of the range are in the page cache (Linux 6.5 and later), or None if unsupported."""
    global _cachestat
    if _cachestat is None:
        return None
    wanted, result = _CachestatRange(position, max(count, 1)), _Cachestat()
    if _cachestat(_SYS_CACHESTAT, descriptor, ctypes.byref(wanted), ctypes.byref(result), 0) != 0:
        _cachestat = None
        return None
    return int(result.cache)


def end_read_ahead(descriptor: int) -> None:
    """Disable read-ahead for the descriptor.

    With read-ahead, a thread that reads or sends the last bytes read ahead must fetch the next ones. On some disks
    these are megabytes, which takes milliseconds of processor time and delays other requests to the disk.
    """
    if hasattr(os, "posix_fadvise"):  # not on macOS
        with suppress(OSError):  # a later read reports the error
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def begin_writing(descriptor: int, position: int, count: int) -> None:
    """Start writing these bytes to the disk without waiting; they are durable only after a sync."""
    if _IS_LINUX:
        ctypes.CDLL(None).sync_file_range(descriptor, ctypes.c_int64(position), ctypes.c_int64(count), _RANGE_WRITE)


def evict(path: str) -> None:
    """Evict a file's pages in small steps, in a thread that is about to remove the file.

    Removing the file would evict all pages at once, 10 ms for 64 MB, and delay any thread that wakes up on that
    processor.
    """
    with suppress(OSError):
        size_bytes = os.stat(path).st_size
        if size_bytes <= EVICT_BYTES or not hasattr(os, "posix_fadvise"):  # not on macOS
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for position in range(0, size_bytes, EVICT_BYTES):
                if cached_pages(descriptor, position, EVICT_BYTES) != 0:
                    os.posix_fadvise(descriptor, position, EVICT_BYTES, os.POSIX_FADV_DONTNEED)
                    time.sleep(EVICT_PAUSE_S)
        finally:
            os.close(descriptor)
