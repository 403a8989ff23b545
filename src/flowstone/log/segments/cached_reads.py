"""Reads that never make the event loop wait for the disk.

The loop reads only what the page cache holds. Where bytes are missing, `NotCached` says which; the caller has a
reader thread `warm` them and asks again. Data leaves the log by reference, as a `LogSlice`.

Somebody else's flush waits for whatever the disk has been asked for before it. So a reader of old data asks for little
at a time, and the system is told not to read ahead (`page_cache.end_read_ahead`): a flush then took ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flowstone.errors import StorageFault
from flowstone.ports.files import File

# What is asked of the disk at a time: a millisecond's worth, of slow ones.
COLD_PIECE_BYTES = 256 << 10

T = TypeVar("T")


class NotCached(Exception):
    """Bytes that are not in the page cache are needed first: `warm()` them in a thread and call again."""

    def __init__(self, file: File, position: int, count: int) -> None:
        super().__init__(f"{file.path}: {count} bytes at {position} are not in the page cache")
        self.file = file
        self.position = position
        self.count = count

    def warm(self) -> None:
        """Waits for the disk; OSError if it fails."""
        bring_in(self.file, self.position, self.count)


class LogSlice:
    """`count` bytes of a log file: one or more batches, the last of which may be cut short."""

    __slots__ = ("count", "file", "position")

    def __init__(self, file: File, position: int, count: int) -> None:
        self.file = file
        self.position = position
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"LogSlice({self.file.path}, {self.position}, {self.count})"

    def read(self) -> bytes:
        """The bytes themselves; may wait for the disk."""
        return self.file.read(self.position, self.count)

    def read_cached(self) -> bytes:
        """The bytes themselves, or `NotCached`."""
        return read_cached(self.file, self.position, self.count)


def bring_in(file: File, position: int, count: int) -> None:
    """Waits until the page cache has the bytes, in a thread. OSError if the disk fails."""
    for at in range(position, position + count, COLD_PIECE_BYTES):
        file.read(at, min(COLD_PIECE_BYTES, position + count - at))


def read_cached(file: File, position: int, count: int) -> bytes:
    """The bytes, or `NotCached`; StorageFault if the disk fails."""
    try:
        data = file.read_cached(position, count)
    except OSError as error:
        raise StorageFault(f"{file.path} cannot be read: {error}") from error
    if data is None:
        raise NotCached(file, position, count)
    return data


def wait_for(read: Callable[[], T]) -> T:
    """What `read` returns, waiting for the disk as often as it must: for start-up, threads and tools."""
    while True:
        try:
            return read()
        except NotCached as missing:
            missing.warm()
