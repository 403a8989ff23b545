"""The two sparse indexes of a segment, in Kafka's file formats.

The offset index maps offsets to positions in the log file (8 bytes: relative offset, position); the time index maps
timestamps to offsets (12 bytes: timestamp, relative offset). Both are sorted, both are derivable from the log, both
are big-endian. The entries of the active segment live in memory and are written when the segment is sealed; those of
a sealed one are searched in its file, through the page cache.

The segment decides which batches get an entry. An entry of the offset index names the last offset of a batch and that
batch's position; one of the time index says that up to this offset no record is newer than this timestamp.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import cast

from flowstone.log.segments.cached_reads import read_cached
from flowstone.log.segments.file_handles import Handle
from flowstone.ports.files import File

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
VALUE_BYTES = 4  # the last bytes of an entry
# A sealed index is searched down to a run of this many bytes, which is then read whole, usually from one page.
SEARCH_RUN_BYTES = 384
# A key and its value: the position or relative offset.
Entry = tuple[int, int]
assert SEARCH_RUN_BYTES % OFFSET_ENTRY.size == SEARCH_RUN_BYTES % TIME_ENTRY.size == 0


class IndexEntries:
    """Index entries in memory: sorted keys (relative offsets or timestamps) and their values."""

    __slots__ = ("_entry", "keys", "values")

    def __init__(self, entry: Struct) -> None:
        self._entry = entry
        self.keys: array[int] = array("q")
        self.values: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.keys)

    def append(self, key: int, value: int) -> None:
        assert not self.keys or key > self.keys[-1]
        self.keys.append(key)
        self.values.append(value)

    def lookup(self, key: int) -> Entry | None:
        """Return the last entry at or before `key`."""
        return self.around(key)[0]

    def around(self, key: int) -> tuple[Entry | None, Entry | None]:
        """Return the last entry at or before `key`, and the first after it."""
        keys, values = self.keys, self.values
        at = bisect_right(keys, key)
        return (
            (keys[at - 1], values[at - 1]) if at else None,
            (keys[at], values[at]) if at < len(keys) else None,
        )

    def first_to(self, value: int) -> Entry | None:
        """Return the first entry that leads to `value` or beyond."""
        at = bisect_left(self.values, value)
        return (self.keys[at], self.values[at]) if at < len(self.values) else None

    def extend(self, other: IndexEntries, first: int) -> None:
        """Append the entries of `other` from its entry number `first` on."""
        self.keys.extend(other.keys[first:])
        self.values.extend(other.values[first:])

    def first(self, count: int) -> IndexEntries:
        """Return a copy of the first `count` entries."""
        entries = IndexEntries(self._entry)
        entries.keys, entries.values = self.keys[:count], self.values[:count]
        return entries

    def encode(self) -> bytes:
        """Return the file's bytes, built column by column: entry by entry would block the loop at every roll.

        Numbers that do not fit keep only their lowest bytes; a lookup of such an entry finds the index damaged.
        """
        size = self._entry.size
        key_bytes = size - VALUE_BYTES
        data = bytearray(len(self.keys) * size)
        for numbers, begin, end in ((self.keys, 0, key_bytes), (self.values, key_bytes, size)):
            column = numbers[:]
            if sys.byteorder == "little":
                column.byteswap()
            column_bytes = column.tobytes()
            for at in range(begin, end):
                data[at::size] = column_bytes[column.itemsize - end + at :: column.itemsize]
        return bytes(data)

    @classmethod
    def decode(cls, entry: Struct, data: bytes) -> IndexEntries | None:
        """Decode an index; return None if the bytes cannot be one: a wrong length, or entries out of order."""
        if len(data) % entry.size:
            return None
        entries = cls(entry)
        for key, value in entry.iter_unpack(data):
            if value < 0 or (entries.keys and (key <= entries.keys[-1] or value <= entries.values[-1])):
                return None
            entries.keys.append(key)
            entries.values.append(value)
        return entries


class SealedIndex:
    """A finished index, searched in its file. `size_bytes` was checked when the segment was sealed or opened."""

    __slots__ = ("_bounds", "_count", "_entry", "_handle")

    def __init__(self, entry: Struct, handle: Handle, size_bytes: int) -> None:
        assert size_bytes % entry.size == 0
        self._entry = entry
        self._handle = handle
        self._count = size_bytes // entry.size
        self._bounds: tuple[int, int] | None = None  # the first and the last key, once they have been read

    def __len__(self) -> int:
        return self._count

    def lookup(self, key: int) -> Entry | None:
        """Return the last entry at or before `key`. Raises NotCached."""
        return self.around(key)[0]

    def around(self, key: int) -> tuple[Entry | None, Entry | None]:
        """Return the last entry at or before `key`, and the first after it, if that was read anyway. Raises NotCached.

        Batches are usually of about one size, so the search begins where the key would be if entries were spaced
        evenly: one read instead of ten in a large index. Only what that read rules out is believed; the rest is halved.
        """
        file, entry = self._handle.get(), self._entry
        # invariant: entries before `low` are at or before the key, those from `high` on are after it
        low, high = 0, self._count
        run = SEARCH_RUN_BYTES // entry.size
        if high > run:
            begin = max(0, min(self._guess(file, key) - run // 2, high - run))
            data = _read(file, begin * entry.size, run * entry.size)
            if entry.unpack_from(data)[0] > key:
                high = begin
            elif entry.unpack_from(data, (run - 1) * entry.size)[0] <= key:
                low = begin + run - 1
            else:
                return self._found_in(data, key)
        while high - low > run:
            middle = (low + high) // 2
            found, _value = entry.unpack(_read(file, middle * entry.size, entry.size))
            if found <= key:
                low = middle
            else:
                high = middle
        return self._found_in(_read(file, low * entry.size, (high - low) * entry.size), key)

    def first_to(self, value: int) -> Entry | None:
        """Return the first entry that leads to `value` or beyond. Raises NotCached."""
        file, entry, size = self._handle.get(), self._entry, self._entry.size
        at = bisect_left(
            range(self._count), value, key=lambda at: cast(int, entry.unpack(_read(file, at * size, size))[1])
        )
        return cast(Entry, entry.unpack(_read(file, at * size, size))) if at < self._count else None

    def _guess(self, file: File, key: int) -> int:
        """Return where the key would be if entries were spaced evenly between the first and the last."""
        if self._bounds is None:
            size = self._entry.size
            first, last = (_read(file, at * size, size) for at in (0, self._count - 1))
            self._bounds = self._entry.unpack(first)[0], self._entry.unpack(last)[0]
        lowest, highest = self._bounds
        return (key - lowest) * self._count // (highest - lowest) if highest > lowest else 0

    def _found_in(self, data: bytes, key: int) -> tuple[Entry | None, Entry | None]:
        size, unpack = self._entry.size, self._entry.unpack_from
        at = size * bisect_right(range(0, len(data), size), key, key=lambda at: unpack(data, at)[0])
        return (
            cast(Entry, unpack(data, at - size)) if at else None,
            cast(Entry, unpack(data, at)) if at < len(data) else None,
        )


def _read(file: File, position: int, count: int) -> bytes:
    """Read bytes, with zeros for those that a truncated file lacks, which a lookup then finds to be damaged."""
    return read_cached(file, position, count).ljust(count, b"\0")


Index = IndexEntries | SealedIndex
