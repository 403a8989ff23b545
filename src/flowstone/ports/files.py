"""The interface to files; `system_files` implements it for the machine, `simulated_files` for simulations.

`Files` is the file system, `File` one open file with positioned reads and writes. Every call is a plain system call and
may block, except `read_cached` and `is_cached`: they use only the page cache, so the event loop can decide whether to
read itself or to use a reader thread. Errors are the system's `OSError`; callers interpret them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from flowstone.ports.thread_pool import ResizableExecutor
from flowstone.types import Bytes

IOVECS_MAX = 1024  # buffers in one call


class Stamp(NamedTuple):
    """The identity, size and change time of a file: while these are equal, so is its content."""

    inode: int
    size_bytes: int
    changed_ns: int


class Lock(Protocol):
    def release(self) -> None: ...


class File(Protocol):
    @property
    def path(self) -> str: ...

    def fileno(self) -> int: ...

    def size(self) -> int: ...

    def read(self, position: int, count: int) -> bytes:
        """Return up to `count` bytes, fewer only at the end of the file. May block on the disk."""
        ...

    def read_cached(self, position: int, count: int) -> bytes | None:
        """Return the same as `read`, or None if it would block on the disk."""
        ...

    def is_cached(self, position: int, count: int) -> bool:
        """Return whether `count` bytes from `position` can be read without blocking on the disk."""
        ...

    def write(self, position: int, buffers: Sequence[Bytes]) -> int:
        """Write all buffers one after the other at `position`; return the number of bytes written."""
        ...

    def sync(self) -> None:
        """Make the file's bytes and size durable: they survive a power failure when it returns."""
        ...

    def truncate(self, size: int) -> None: ...

    def reserve(self, position: int, count: int) -> None:
        """Preallocate disk space for bytes beyond the end; `truncate` to the size releases it.

        Does nothing if the disk has not enough free space.
        """
        ...

    def close(self) -> None: ...


class Files(Protocol):
    @property
    def has_descriptors(self) -> bool:
        """Return whether native code may sync a file through its `fileno` instead of calling `sync`."""
        ...

    def open(self, path: str, *, create: bool = False) -> File: ...

    def read(self, path: str) -> bytes: ...

    def replace(self, path: str, data: bytes) -> None:
        """Replace the file's content durably: after a power failure it contains either the old content or `data`."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def stamp(self, path: str) -> Stamp:
        """Return a stamp that changes with a file's content, or with the names in a directory."""
        ...

    def names(self, directory: str) -> list[str]: ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, and make the new names durable."""
        ...

    def new_directory(self, path: str) -> None:
        """Create a directory in an existing parent if it is missing; its name is durable once the parent is synced."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Create another name for the same file. Raises OSError if that name exists."""
        ...

    def link_count(self, path: str) -> int:
        """Return the number of names of the file, 0 if it does not exist."""
        ...

    def copy(self, source: str, target: str, size_bytes: int) -> None:
        """Copy the first bytes of a file to a new file, replacing any file of that name; it is not durable yet."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def sync_filesystem(self, path: str) -> None:
        """Make everything written to the file system that contains `path` durable."""
        ...

    def is_own_filesystem(self, path: str) -> bool:
        """Return whether the directory is a mount point, so that syncing it affects no other data."""
        ...

    def free_bytes(self, path: str) -> tuple[int, int]:
        """Return the (usable, total) bytes of the file system that contains `path`."""
        ...

    def lock(self, path: str) -> Lock:
        """Lock the file exclusively. Raises BlockingIOError if another process has locked it."""
        ...

    def threads(self, count: int, name: str) -> Executor:
        """Return an executor for calls that block on the disk. Simulated disks may let them wait in simulated time."""
        ...

    def resizable_threads(self, count: int, name: str) -> ResizableExecutor:
        """Return what `threads` returns, with a number of threads that can change."""
        ...
