"""Counts of what connections have not sent yet: bytes in memory, and slices that keep log files open.

A client that does not read makes the broker keep them. They are counted per connection and over all connections, since
memory and descriptors are limits of the whole broker. `server` decides which connections are closed at the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowstone.broker.requests.chunks import Chunk

# Over all connections. Beyond it, connections that have unsent bytes are not read from.
UNSENT_BYTES_MAX = 256 << 20
# Over all connections: each may hold a descriptor. Beyond it, a fetch gets records of one partition only.
UNSENT_SLICES_MAX = 512
# Slices in one answer: a fetch over a thousand partitions must not hold a thousand files open.
RESPONSE_SLICES_MAX = 128


class UnsentTotal:
    """The unsent bytes and slices of all connections."""

    __slots__ = ("memory_bytes", "slice_count")

    def __init__(self) -> None:
        self.memory_bytes = self.slice_count = 0

    @property
    def is_too_much(self) -> bool:
        return self.memory_bytes > UNSENT_BYTES_MAX

    @property
    def response_slices_max(self) -> int:
        """Return how many slices an answer may have now; at least one, so that every client progresses."""
        return min(RESPONSE_SLICES_MAX, max(1, UNSENT_SLICES_MAX - self.slice_count))


class Unsent:
    """The unsent bytes and slices of one connection: each answer counts from its encoding until it is sent."""

    __slots__ = ("_total", "memory_bytes", "slice_count")

    def __init__(self, total: UnsentTotal) -> None:
        self._total = total
        self.memory_bytes = self.slice_count = 0

    def add(self, chunks: Iterable[Chunk]) -> int:
        """Count the chunks; return the sum of their lengths, those of file slices included."""
        memory_bytes = slice_bytes = slice_count = 0
        for chunk in chunks:
            if isinstance(chunk, bytes | bytearray | memoryview):
                memory_bytes += len(chunk)
            else:
                slice_bytes += len(chunk)
                slice_count += 1
        self.change(memory_bytes, slice_count)
        return memory_bytes + slice_bytes

    def clear(self) -> None:
        self.change(-self.memory_bytes, -self.slice_count)

    def change(self, memory_bytes: int, slice_count: int) -> None:
        """Add to the counts; negative numbers are bytes and slices that were sent."""
        total = self._total
        self.memory_bytes += memory_bytes
        total.memory_bytes += memory_bytes
        if slice_count:
            self.slice_count += slice_count
            total.slice_count += slice_count
        assert self.memory_bytes >= 0 <= self.slice_count
