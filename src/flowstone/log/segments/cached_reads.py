"""Reads that never make the event loop wait for the disk.

The loop reads only what the page cache holds. Where bytes are missing, `NotCached` says which; the caller has a
reader thread `warm` them and asks again. Data leaves the log by reference, as a `LogSlice`.

A flush waits for the disk requests that are queued before it. So a reader of old data requests little at a time, and
the system's read-ahead is turned off (`page_cache.end_read_ahead`): with read-ahead a flush took ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from flowstone.errors import StorageFault
from flowstone.ports.files import File

# How much is read from the disk at a time: about a millisecond of a slow disk.
COLD_PIECE_BYTES = 256 << 10

T = TypeVar("T")


class NotCached(Exception):
    """The bytes needed are not in the page cache: call `warm()` in a thread, and try again."""

    def __init__(self, file: File, position: int, count: int) -> None:
        super().__init__(f"{file.path}: {count} bytes at {position} are not in the page cache")
        self.file = file
        self.position = position
        self.count = count

    def warm(self) -> None:
        """Read the bytes into the page cache, waiting for the disk. Raises OSError if the disk fails."""
        bring_in(self.file, self.position, self.count)


@dataclass(slots=True, eq=False, repr=False)
class LogSlice:
    """A reference to `count` bytes of a log file: one or more batches, the last of which may be incomplete."""

    file: File
    position: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"LogSlice({self.file.path}, {self.position}, {self.count})"

    def read(self) -> bytes:
        """Return the bytes, waiting for the disk if necessary."""
        return self.file.read(self.position, self.count)

    def read_cached(self) -> bytes:
        """Return the bytes. Raises NotCached if they are not in the page cache."""
        return read_cached(self.file, self.position, self.count)


def bring_in(file: File, position: int, count: int) -> None:
    """Read bytes into the page cache, waiting for the disk in a thread. Raises OSError if the disk fails."""
    for at in range(position, position + count, COLD_PIECE_BYTES):
        file.read(at, min(COLD_PIECE_BYTES, position + count - at))


def read_cached(file: File, position: int, count: int) -> bytes:
    """Return bytes of a file. Raises NotCached if the page cache lacks them, StorageFault if the disk fails."""
    try:
        data = file.read_cached(position, count)
    except OSError as error:
        raise StorageFault(f"{file.path} cannot be read: {error}") from error
    if data is None:
        raise NotCached(file, position, count)
    return data


def wait_for(read: Callable[[], T]) -> T:
    """Return what `read` returns, waiting for the disk as often as necessary: for start-up, threads and tools."""
    while True:
        try:
            return read()
        except NotCached as missing:
            missing.warm()
