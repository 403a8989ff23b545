"""Walking a log file batch by batch, in large reads that may wait for the disk.

For recovery, for rebuilding what is derived from the log, and for tools. No byte is trusted: what cannot be a batch
ends the walk with `DamagedBatch`, which says where and why. The caller decides what the damage means. Offsets rise, but
need not follow each other: compaction leaves holes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from flowstone.ports.files import File
from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, BatchHeader, CorruptBatch, checksum_matches, parse_header

VERIFY_CHUNK_BYTES = 1 << 20
HEADERS_CHUNK_BYTES = 1 << 16
HEADER_READ_BYTES = 1 << 10
OFFSET_MAX = 2**63 - 1


Inspect = Callable[[Bytes, int, BatchHeader], str | None]  # (bytes, the batch's position in them, its header)


class DamagedBatch(Exception):
    def __init__(self, position: int, next_offset: int, reason: str) -> None:
        super().__init__(f"at position {position} (offset {next_offset}): {reason}")
        self.position = position
        self.next_offset = next_offset
        self.reason = reason


class ScannedBatch(NamedTuple):
    position: int
    header: BatchHeader


class UnreadableBatch(DamagedBatch):
    """A whole batch has a correct checksum, but its records cannot be read."""

    def __init__(self, batch: ScannedBatch, next_offset: int, reason: str) -> None:
        super().__init__(batch.position, next_offset, reason)
        self.header = batch.header


class OutOfOrder(DamagedBatch):
    """A batch begins before the previous one ends: the offset of one of the two is wrong."""


def scan(
    file: File,
    position: int,
    end: int,
    next_offset: int,
    *,
    verify_from_offset: int | None = None,
    holes_end_max: int = OFFSET_MAX,
    inspect: Inspect | None = None,
) -> Iterator[ScannedBatch]:
    """Yield every batch from `position`, where one begins, to `end`; their offsets rise from `next_offset` on.

    Batches that reach beyond `verify_from_offset` have their checksums checked, so that all their bytes are read; of
    the others only the headers are looked at. `inspect`, if given, is asked of each of them why it cannot be read.

    Checksums do not cover offsets. A batch after a hole is accepted once another one follows it or, at the end, if its
    offsets do not reach beyond `holes_end_max`. Otherwise it counts as damaged.
    """
    held: ScannedBatch | None = None  # a batch after a hole, held until the next one confirms it
    damage: DamagedBatch | None = None
    try:
        for batch in _walk(file, position, end, next_offset, verify_from_offset, inspect):
            if held is not None:
                yield held
                next_offset = held.header.next_offset
                held = None
            if batch.header.base_offset > next_offset:
                held = batch
            else:
                yield batch
                next_offset = batch.header.next_offset
    except DamagedBatch as found:
        damage = found
    if held is not None:
        if isinstance(damage, OutOfOrder) or held.header.next_offset > holes_end_max:
            raise _out_of_order(held, next_offset)
        yield held
    if damage is not None:
        raise damage


def _walk(
    file: File,
    position: int,
    end: int,
    next_offset: int,
    verify_from_offset: int | None,
    inspect: Inspect | None,
) -> Iterator[ScannedBatch]:
    chunk, chunk_start = memoryview(b""), position
    batch_bytes = HEADERS_CHUNK_BYTES  # of the previous batch
    while position < end:
        if position + HEADER_BYTES > end:
            raise DamagedBatch(position, next_offset, "the file ends inside a header")
        if not chunk_start <= position <= chunk_start + len(chunk) - HEADER_BYTES:
            # Among large batches a large read would be mostly bytes other than headers.
            wanted_bytes = HEADERS_CHUNK_BYTES if batch_bytes < HEADERS_CHUNK_BYTES else HEADER_READ_BYTES
            chunk, chunk_start = _read(file, position, wanted_bytes, end)
        header = _header(chunk, position - chunk_start, position, next_offset)
        _check(header, position, end, next_offset)
        if verify_from_offset is not None and header.next_offset > verify_from_offset:
            if position + header.size_bytes > chunk_start + len(chunk):
                chunk, chunk_start = _read(file, position, max(VERIFY_CHUNK_BYTES, header.size_bytes), end)
            if not checksum_matches(chunk, position - chunk_start, header):
                raise DamagedBatch(position, next_offset, "the checksum does not match")
            if inspect is not None and (reason := inspect(chunk, position - chunk_start, header)) is not None:
                raise UnreadableBatch(ScannedBatch(position, header), next_offset, reason)
        yield ScannedBatch(position, header)
        batch_bytes = header.size_bytes
        position += batch_bytes
        next_offset = header.next_offset


def _out_of_order(batch: ScannedBatch, next_offset: int) -> OutOfOrder:
    return OutOfOrder(batch.position, next_offset, f"a batch with offset {batch.header.base_offset} is out of order")


def _read(file: File, position: int, count: int, end: int) -> tuple[memoryview, int]:
    count = min(count, end - position)
    data = file.read(position, count)
    if len(data) < count:
        raise DamagedBatch(position, -1, "the file is shorter than it was")
    return memoryview(data), position


def _header(chunk: memoryview, at: int, position: int, next_offset: int) -> BatchHeader:
    try:
        return parse_header(chunk, at)
    except CorruptBatch as error:
        raise DamagedBatch(position, next_offset, str(error)) from None


def _check(header: BatchHeader, position: int, end: int, next_offset: int) -> None:
    if header.size_bytes < HEADER_BYTES:
        raise DamagedBatch(position, next_offset, f"a batch of {header.size_bytes} bytes cannot be")
    if position + header.size_bytes > end:
        raise DamagedBatch(position, next_offset, f"a batch of {header.size_bytes} bytes goes beyond the file's end")
    if header.base_offset < next_offset:
        raise _out_of_order(ScannedBatch(position, header), next_offset)
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise DamagedBatch(position, next_offset, "negative counts")
