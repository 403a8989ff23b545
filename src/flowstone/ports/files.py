"""Files as the rest knows them: the machine's own are in `system_files`, those of a simulation in `simulated_files`.

`Files` is the file system, `File` one open file with positioned reads and writes. Every call is a plain system call and
may block, except the two that promise not to: `read_cached` and `is_cached` look only at the page cache, so that the
event loop can tell what it may read itself from what a reader thread must fetch. Errors are the system's `OSError`;
what they mean is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from flowstone.types import Bytes

IOVECS_MAX = 1024  # buffers in one call


class Stamp(NamedTuple):
    """Which file it is, its size and when it last changed: as long as these are the same, so is what it holds."""

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
        """Up to `count` bytes; fewer only at the end of the file. May wait for the disk."""
        ...

    def read_cached(self, position: int, count: int) -> bytes | None:
        """Like `read`, but None where it would have to wait for the disk."""
        ...

    def is_cached(self, position: int, count: int) -> bool:
        """Whether `count` bytes from `position` can be read without waiting for the disk."""
        ...

    def write(self, position: int, buffers: Sequence[Bytes]) -> int:
        """Writes all the buffers one after the other at `position`; the number of bytes written."""
        ...

    def sync(self) -> None:
        """Returns once the file's bytes and size survive a power loss."""
        ...

    def truncate(self, size: int) -> None: ...

    def reserve(self, position: int, count: int) -> None:
        """Room on the disk for bytes beyond the end, if it has any; `truncate` to the size gives it back."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    @property
    def has_descriptors(self) -> bool:
        """Whether native code may sync a file through its `fileno` instead of calling `sync`."""
        ...

    def open(self, path: str, *, create: bool = False) -> File: ...

    def read(self, path: str) -> bytes: ...

    def replace(self, path: str, data: bytes) -> None:
        """The file holds either what it held or `data`, also after a power loss."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def stamp(self, path: str) -> Stamp:
        """Of a file, changes with its bytes, of a directory, with the names in it."""
        ...

    def names(self, directory: str) -> list[str]: ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """With its parents; the new names are durable."""
        ...

    def new_directory(self, path: str) -> None:
        """In a parent that exists, if it is not there yet; its name is durable once the parent is synced."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Another name for the same file; OSError if there is something of that name."""
        ...

    def link_count(self, path: str) -> int:
        """How many names the file has; 0 if it is not there."""
        ...

    def copy(self, source: str, target: str, size_bytes: int) -> None:
        """The first bytes of a file as a file of its own, in place of whatever has that name; not durable yet."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def sync_filesystem(self, path: str) -> None:
        """Returns once everything written to the file system that holds `path` survives a power loss."""
        ...

    def is_own_filesystem(self, path: str) -> bool:
        """Whether the directory is the root of a file system, so that syncing that syncs nobody else's files."""
        ...

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(usable, total) bytes of the file system that holds `path`."""
        ...

    def lock(self, path: str) -> Lock:
        """An exclusive lock on the file; BlockingIOError if another process has it."""
        ...

    def threads(self, count: int, name: str) -> Executor:
        """Threads for calls that wait for the disk. Simulated disks may let them wait in simulated time."""
        ...
