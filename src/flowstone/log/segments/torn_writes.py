"""Distinguishes an interrupted write from damage to written data, by where good batches continue and what lies between.

A killed process leaves at most one unfinished batch, at the very end. A power loss may also leave a hole: blocks that
were not flushed reach the disk in any order, so that a later batch can be there and an earlier one not. Such a hole is
made of missing blocks, which read as zeros up to the end of a sector, or the file ends there. A large batch whose
header was not written yet (`large_appends`) begins with a header of zeros, and its records may contain anything, whole
batches too. Anything else in front of good batches is damage: those batches were written after it and must not be cut
off. Waits for the disk.
"""

from __future__ import annotations

import contextlib

from flowstone.log.segments.batch_scan import ScannedBatch
from flowstone.log.segments.segment import RELATIVE_OFFSET_MAX
from flowstone.ports.files import File
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_POSITION,
    CorruptBatch,
    checksum_matches,
    parse_header,
)

SEARCH_BYTES = 1 << 20
SECTOR_BYTES = 512
# Fewer zeros at the end of a sector are taken for a batch's own, unless they begin where the batch does.
LOST_BYTES_MIN = 32
LOST_HEADER_BYTES_MIN = 8


def next_good_batch(file: File, damaged: int, end: int, base_offset: int, next_offset: int) -> ScannedBatch | None:
    """Return the first good batch after the one at position `damaged` of a segment's file, or None.

    Its offsets are at or above `next_offset`. It is searched for where the damaged batch's own length leads, then by
    search for any header.
    """
    with contextlib.suppress(CorruptBatch):
        length_leads_to = damaged + parse_header(file.read(damaged, HEADER_BYTES)).size_bytes
        found = _good_batch(file, length_leads_to, end, base_offset, next_offset)
        if found is not None and length_leads_to > damaged:
            return found
    chunk_start = damaged + 1
    while chunk_start + HEADER_BYTES <= end:
        chunk = file.read(chunk_start, min(SEARCH_BYTES + HEADER_BYTES, end - chunk_start))
        at = chunk.find(MAGIC, MAGIC_POSITION)
        while at >= 0:
            found = _good_batch(file, chunk_start + at - MAGIC_POSITION, end, base_offset, next_offset)
            if found is not None:
                return found
            at = chunk.find(MAGIC, at + 1)
        chunk_start += SEARCH_BYTES
    return None


def _good_batch(file: File, position: int, end: int, base_offset: int, next_offset: int) -> ScannedBatch | None:
    if position + HEADER_BYTES > end:
        return None
    try:
        header = parse_header(file.read(position, HEADER_BYTES))
    except CorruptBatch:
        return None
    if not next_offset <= header.base_offset <= base_offset + RELATIVE_OFFSET_MAX or header.last_offset_delta < 0:
        return None
    if position + header.size_bytes > end or header.record_count < 0 or header.size_bytes < HEADER_BYTES:
        return None
    if not checksum_matches(file.read(position, header.size_bytes), 0, header):
        return None
    return ScannedBatch(position, header)


def good_batches_behind(
    file: File, position: int, end: int, base_offset: int, next_offset: int, following: tuple[int, File] | None
) -> str | None:
    """Describe the good batches after the bad one at this position; return None if an interrupted write explains it.

    `following` is the next segment, if there is one.
    """
    found = next_good_batch(file, position, end, base_offset, next_offset)
    if found is not None:
        is_torn = is_written_ahead(file, position) or has_missing_blocks(file, position, found.position)
        return None if is_torn else f"offset {found.header.base_offset}"
    if following is None or not _starts_well(following[1], following[0]):
        return None
    if _is_cut_short(file, position, end) or has_missing_blocks(file, position, end):
        return None
    return f"offset {following[0]}, where the next segment begins"


def is_written_ahead(file: File, position: int) -> bool:
    """Return whether records lie at this position whose batch got no header: those of a large append."""
    data = file.read(position, HEADER_BYTES + 1)
    return data[:-1] == bytes(HEADER_BYTES) and data[-1] != 0


def _starts_well(file: File, base_offset: int) -> bool:
    """Return whether a segment's file begins with a good batch."""
    return _good_batch(file, 0, file.size(), base_offset, base_offset) is not None


def _is_cut_short(file: File, position: int, end: int) -> bool:
    """Return whether the file ends within the batch that begins at this position, or within its header."""
    try:
        return position + parse_header(file.read(position, min(HEADER_BYTES, end - position))).size_bytes > end
    except CorruptBatch:
        return end - position < HEADER_BYTES


def has_missing_blocks(file: File, begin: int, end: int) -> bool:
    """Return whether blocks that never reached the disk explain why no good batch lies between these positions.

    That is so if a sector in between ends in zeros: its end was not written, though what follows was.
    """
    at = begin
    while at < end:
        data = file.read(at, min(SEARCH_BYTES - at % SECTOR_BYTES, end - at))
        for sector_end in range(at - at % SECTOR_BYTES + SECTOR_BYTES, at + len(data) + 1, SECTOR_BYTES):
            sector_begin = max(sector_end - SECTOR_BYTES, begin)
            sector = data[sector_begin - at : sector_end - at]
            zeros = len(sector) - len(sector.rstrip(b"\0"))
            from_header = zeros == len(sector) and sector_begin == begin
            if zeros >= (LOST_HEADER_BYTES_MIN if from_header else LOST_BYTES_MIN):
                return True
        at += max(len(data), 1)
    return False
