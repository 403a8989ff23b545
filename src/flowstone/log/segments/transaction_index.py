"""The index of the aborted transactions whose markers lie in one segment, in Kafka's file format (`.txnindex`).

An entry (34 bytes: version, producer id, first offset, marker's offset, last stable offset) says that the producer's
transactional batches between the two offsets are aborted. Entries are in the order of their markers. The last one is
the log's last stable offset once the marker was there: no transaction decided later begins below it, which ends a
search.

As with the other indexes the entries of an active segment live in memory, where an abort cannot fail for want of disk
space, and are written when the segment is sealed; those of a sealed one are read from its file, through the page cache.
All of it is derivable from the log.

Once a log has had a transaction all its sealed segments have such a file, an empty one too: a start misses one that is
gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from struct import Struct
from typing import NamedTuple, cast

from flowstone.errors import StorageFault
from flowstone.log.segments.cached_reads import read_cached
from flowstone.log.segments.file_handles import Handle
from flowstone.types import Bytes

TRANSACTION_ENTRY = Struct(">hqqqq")
READ_ENTRIES = 1024
_VERSION = 0
_MARKER_POSITION = 18
# The values of an AbortEntry, without its names, which take as long to make as the rest of a search.
Fields = tuple[int, int, int, int, int]
_unpack_from = cast(Callable[[Bytes, int], Fields], TRANSACTION_ENTRY.unpack_from)


class AbortEntry(NamedTuple):
    version: int
    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


def abort_entry(producer_id: int, first_offset: int, marker_offset: int, last_stable_offset: int) -> AbortEntry:
    return AbortEntry(_VERSION, producer_id, first_offset, marker_offset, last_stable_offset)


def encode_aborts(entries: Iterable[AbortEntry]) -> bytes:
    return b"".join([TRANSACTION_ENTRY.pack(*entry) for entry in entries])


def decode_aborts(data: Bytes) -> Iterator[AbortEntry]:
    """Yield the entries in the bytes of an index."""
    return map(AbortEntry._make, TRANSACTION_ENTRY.iter_unpack(data))


def is_sound(data: Bytes, base_offset: int, end_offset: int) -> bool:
    """Return whether the bytes are a valid index of a segment with these offsets."""
    if len(data) % TRANSACTION_ENTRY.size:
        return False
    next_offset = base_offset
    for entry in decode_aborts(data):
        is_whole = (
            entry.version == _VERSION
            and 0 <= entry.first_offset < entry.marker_offset
            and 0 <= entry.last_stable_offset <= entry.marker_offset + 1
            and next_offset <= entry.marker_offset < end_offset
        )
        if not is_whole:
            return False
        next_offset = entry.marker_offset + 1
    return True


def aborts_below(data: Bytes, offset: int) -> bytes:
    """Return the entries whose markers lie below the offset."""
    view = memoryview(data)
    return bytes(view[: _first_from(view, offset) * TRANSACTION_ENTRY.size])


def _positions(data: Bytes) -> range:
    """Return where the whole entries begin."""
    return range(0, len(data) - TRANSACTION_ENTRY.size + 1, TRANSACTION_ENTRY.size)


def _first_from(data: Bytes, offset: int) -> int:
    """Return the number of the first entry whose marker lies at or above the offset."""
    size = TRANSACTION_ENTRY.size
    return bisect_left(range(len(data) // size), offset, key=lambda at: _marker_offset(data, at * size))


def _marker_offset(data: Bytes, position: int) -> int:
    return int.from_bytes(data[position + _MARKER_POSITION : position + _MARKER_POSITION + 8])


class TransactionIndex:
    __slots__ = ("_entries", "_markers", "handle", "has_file", "size_bytes")

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.has_file = False
        self._entries: bytes | bytearray | None = b""  # None: they are in the file
        self._markers: array[int] = array("q")  # the markers' offsets of entries in memory
        self.size_bytes = 0

    @property
    def is_active(self) -> bool:
        """Return whether the entries are in memory and not yet all in the file."""
        return self._entries is not None

    # While the segment is active

    def note(self, entry: AbortEntry) -> None:
        """Add the entry of a marker that was appended and aborts a transaction."""
        if not isinstance(self._entries, bytearray):
            assert self._entries is not None
            self._entries = bytearray(self._entries)
        self._entries += TRANSACTION_ENTRY.pack(*entry)
        self._markers.append(entry.marker_offset)
        self.size_bytes = len(self._entries)

    def open_active(self, data: bytes, *, has_file: bool) -> None:
        """Set the entries of the active segment, which further entries follow."""
        self._entries, self.size_bytes, self.has_file = data, len(data), has_file
        self._markers = array("q", [_marker_offset(data, at) for at in _positions(data)])

    def write(self, *, even_if_empty: bool) -> None:
        """Write the entries to the file; the caller syncs it. Raises OSError."""
        assert self._entries is not None
        if not (self._entries or even_if_empty or self.has_file):
            return
        file = self.handle.create_own()
        file.write(0, [bytes(self._entries)])
        if file.size() > len(self._entries):
            file.truncate(len(self._entries))
        self.has_file = True

    def create_empty(self) -> None:
        """Make the file of a sealed segment that is older than the log's first transaction. Raises OSError."""
        assert not self.has_file
        self.handle.create_own().truncate(0)
        self.has_file = True

    def seal(self) -> None:
        """Record that no append follows: entries are read from the file from now on."""
        self._entries, self._markers = None, array("q")

    # Sealed segments

    def open_sealed(self, size_bytes: int | None) -> None:
        """Use the existing file of a sealed segment; a size of None means that the file is missing."""
        self.has_file, self.size_bytes = size_bytes is not None, size_bytes or 0
        self.seal()

    # Active and sealed segments

    def read(self) -> bytes:
        """Return all entries. Raises NotCached."""
        if self._entries is not None:
            return bytes(self._entries)
        return self._read(0, self.size_bytes)

    def entries_from(self, offset: int) -> Iterator[Fields]:
        """Return the fields of the entries whose markers lie at or above the offset. Raises NotCached."""
        count, size = self.size_bytes // TRANSACTION_ENTRY.size, TRANSACTION_ENTRY.size
        entries = self._entries
        if entries is not None:
            first = bisect_left(self._markers, offset)
            return map(partial(_unpack_from, entries), range(first * size, count * size, size))
        first = bisect_left(range(count), offset, key=lambda at: _marker_offset(self._read(at * size, size), 0))
        return self._stored_entries(first, count)

    def _stored_entries(self, first: int, count: int) -> Iterator[Fields]:
        size = TRANSACTION_ENTRY.size
        for at in range(first, count, READ_ENTRIES):
            yield from TRANSACTION_ENTRY.iter_unpack(self._read(at * size, min(READ_ENTRIES, count - at) * size))

    def _read(self, position: int, count: int) -> bytes:
        if self._entries is not None:
            return bytes(self._entries[position : position + count])
        if not count:
            return b""
        data = read_cached(self.handle.get(), position, count)
        if len(data) != count:
            raise StorageFault(f"{self.handle.path} is shorter than it was")
        return data
