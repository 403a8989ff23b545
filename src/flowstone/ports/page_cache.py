"""What the page cache holds: questions about a file's bytes that never wait for the disk, and how it lets go of them.

Linux answers them all.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from contextlib import suppress

# A quarter of a millisecond's work for the system, and what others get in between.
FORGET_BYTES = 2 << 20
FORGET_PAUSE_S = 0.001

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # not on macOS
_SYS_CACHESTAT = 451
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE


def read_nowait(descriptor: int, buffer: bytearray, position: int) -> int | None:
    """Bytes read from the page cache, -1 if the first of them is not there, None if the system cannot tell."""
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
    """How many pages of the range are in the page cache (Linux 6.5 and later); None if the system cannot tell."""
    global _cachestat
    if _cachestat is None:
        return None
    wanted, result = _CachestatRange(position, max(count, 1)), _Cachestat()
    if _cachestat(_SYS_CACHESTAT, descriptor, ctypes.byref(wanted), ctypes.byref(result), 0) != 0:
        _cachestat = None
        return None
    return int(result.cache)


def end_read_ahead(descriptor: int) -> None:
    """The system brings in what is read by this descriptor and nothing else.

    Whoever reads or sends the last bytes that it has read ahead of him is made to fetch the next ones: megabytes at a
    time where a disk is set up so, milliseconds of a processor, and whatever the disk is asked for next waits for them.
    """
    if hasattr(os, "posix_fadvise"):  # not on macOS
        with suppress(OSError):  # what is wrong with it, reading will say
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


def begin_writing(descriptor: int, position: int, count: int) -> None:
    """Has the system begin to write these bytes to the disk, and waits for nothing: durable they are after a sync."""
    if _IS_LINUX:
        ctypes.CDLL(None).sync_file_range(descriptor, ctypes.c_int64(position), ctypes.c_int64(count), _RANGE_WRITE)


def forget(path: str) -> None:
    """For a thread that is about to remove a file: its pages go a few at a time, as far as the system lets them.

    Removing it would drop them all at once, 10 ms for 64 MB, and whoever wakes up on that processor waits for it.
    """
    with suppress(OSError):
        size_bytes = os.stat(path).st_size
        if size_bytes <= FORGET_BYTES or not hasattr(os, "posix_fadvise"):  # not on macOS
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for position in range(0, size_bytes, FORGET_BYTES):
                if cached_pages(descriptor, position, FORGET_BYTES) != 0:
                    os.posix_fadvise(descriptor, position, FORGET_BYTES, os.POSIX_FADV_DONTNEED)
                    time.sleep(FORGET_PAUSE_S)
        finally:
            os.close(descriptor)
