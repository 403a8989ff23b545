"""The machine's file system. This module, `page_cache`, `preallocation` and `file_syncs` do all disk access.

Files are never mapped: an I/O error in mapped memory is a SIGBUS.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import shutil
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from flowstone.ports.files import IOVECS_MAX, Lock, Stamp
from flowstone.ports.page_cache import cached_pages, end_read_ahead, read_nowait
from flowstone.ports.preallocation import reserve
from flowstone.ports.thread_pool import ResizableExecutor, ThreadPool
from flowstone.types import Bytes

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Without the cachestat system call, residency is probed at this stride: the usual read-ahead window.
PROBE_STRIDE_BYTES = 128 * 1024
OPEN_FILES_UNLIMITED = 1 << 30
COPY_BYTES = 1 << 20
_TEMPORARY_SUFFIX = ".tmp"


class SystemFile:
    __slots__ = ("_descriptor", "_is_read_ahead", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._is_read_ahead = True

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, position: int, count: int) -> bytes:
        data = os.pread(self._descriptor, count, position)
        if len(data) == count or not data:
            return data
        parts = [data]
        missing = count - len(data)
        while missing and (data := os.pread(self._descriptor, missing, position + count - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def read_cached(self, position: int, count: int) -> bytes | None:
        if self._is_read_ahead:
            self._end_read_ahead()
        buffer = bytearray(count)
        got = read_nowait(self._descriptor, buffer, position)
        if got is None:
            return self.read(position, count)
        if got == count:
            return bytes(buffer)
        # A short read is either the end of the file, which needs no wait, or uncached pages.
        if got >= 0 and position + got >= self.size():
            return bytes(memoryview(buffer)[:got])
        return None

    def is_cached(self, position: int, count: int) -> bool:
        if self._is_read_ahead:
            self._end_read_ahead()
        pages = cached_pages(self._descriptor, position, count)
        if pages is not None:
            first, last = position // PAGE_BYTES, (position + max(count, 1) - 1) // PAGE_BYTES
            return pages > last - first
        probe = bytearray(1)
        probes = [*range(position, position + count, PROBE_STRIDE_BYTES), position + max(count, 1) - 1]
        return all(read_nowait(self._descriptor, probe, at) != -1 for at in probes)

    def _end_read_ahead(self) -> None:
        """Disable read-ahead: with it, sending cached bytes may block to read further ones."""
        self._is_read_ahead = False
        end_read_ahead(self._descriptor)

    def write(self, position: int, buffers: Sequence[Bytes]) -> int:
        total = sum(map(len, buffers))
        if len(buffers) <= IOVECS_MAX:
            written = os.pwritev(self._descriptor, buffers, position)
            if written == total:
                return total
        else:
            written = 0
        pending = _skip(buffers, written)
        while pending:
            count = os.pwritev(self._descriptor, pending[:IOVECS_MAX], position + written)
            if not count:
                raise OSError(errno.EIO, "the file accepts no more bytes", self.path)
            written += count
            pending = _skip(pending, count)
        return written

    def sync(self) -> None:
        _sync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def reserve(self, position: int, count: int) -> None:
        reserve(self._descriptor, position, count)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class SystemFiles:
    """The machine's own file system."""

    has_descriptors = True

    def open(self, path: str, *, create: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(path, os.open(path, flags, 0o644))

    def read(self, path: str) -> bytes:
        """Return a file's content without Python's file objects, because a start reads thousands of small files."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts, size_bytes = list[bytes](), os.fstat(descriptor).st_size
            while data := os.read(descriptor, size_bytes + 1):
                parts.append(data)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def replace(self, path: str, data: bytes) -> None:
        temporary = path + _TEMPORARY_SUFFIX
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            _sync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def stamp(self, path: str) -> Stamp:
        found = os.stat(path)
        return Stamp(found.st_ino, found.st_size, found.st_ctime_ns)

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_directory(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        self.sync_directory(parent)

    def new_directory(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def link_count(self, path: str) -> int:
        try:
            return os.stat(path).st_nlink
        except FileNotFoundError:
            return 0

    def copy(self, source: str, target: str, size_bytes: int) -> None:
        with open(source, "rb") as from_file, open(target, "wb") as to_file:
            copied = _copy_in_kernel(from_file.fileno(), to_file.fileno(), size_bytes)
            from_file.seek(copied)
            to_file.seek(copied)
            while copied < size_bytes:
                data = from_file.read(min(COPY_BYTES, size_bytes - copied))
                if not data:
                    raise OSError(errno.EIO, f"the file has less than {size_bytes} bytes", source)
                to_file.write(data)
                copied += len(data)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_filesystem(self, path: str) -> None:
        if _syncfs is None:
            raise OSError(errno.ENOSYS, "this system cannot sync one file system", path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(descriptor)

    def is_own_filesystem(self, path: str) -> bool:
        return _syncfs is not None and os.path.ismount(path)

    def free_bytes(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize

    def lock(self, path: str) -> Lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return _SystemLock(descriptor)

    def threads(self, count: int, name: str) -> Executor:
        return ThreadPoolExecutor(count, name)

    def resizable_threads(self, count: int, name: str) -> ResizableExecutor:
        return ThreadPool(count, name)


class _SystemLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def open_files_limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _copy_in_kernel(source: int, target: int, size_bytes: int) -> int:
    """Return how many bytes the kernel has copied; some file systems share blocks, some do not support it."""
    copied = 0
    if hasattr(os, "copy_file_range"):
        with contextlib.suppress(OSError):  # the rest is read and written, which reports the error
            while copied < size_bytes:
                count = os.copy_file_range(source, target, size_bytes - copied, copied, copied)
                if not count:
                    break
                copied += count
    return copied


def _skip(buffers: Sequence[Bytes], count: int) -> list[Bytes]:
    """Return `buffers` without their first `count` bytes."""
    left: list[Bytes] = []
    for buffer in buffers:
        if count >= len(buffer):
            count -= len(buffer)
        else:
            left.append(memoryview(buffer)[count:] if count else buffer)
            count = 0
    return left


# macOS: fsync alone leaves the bytes in the drive's cache.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fdatasync(descriptor)


def _syncfs_call() -> ctypes._NamedFuncPointer | None:
    """Return syncfs(2) as a ctypes function, or None before Linux 5.8, where it does not report write errors."""
    system = os.uname()
    if system.sysname != "Linux" or tuple(map(int, system.release.split(".")[:2])) < (5, 8):
        return None
    call = ctypes.CDLL(None, use_errno=True).syncfs
    call.argtypes = [ctypes.c_int]
    call.restype = ctypes.c_int
    return call


_syncfs = _syncfs_call()
