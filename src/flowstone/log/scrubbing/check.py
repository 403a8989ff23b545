"""Checks one segment for the scrubber: reads all of it, slowly, and says what is wrong. Changes nothing.

A sealed segment is good when every batch is whole with its checksum right and its records can be read, offsets rise,
it ends where the next one begins, and its transaction index matches its batches. The other indexes need no check: an
entry that leads astray is noticed by its reader. The caller's file decides how fast bytes are read and what stays in
the page cache.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from flowstone.log.partition.readability import why_unreadable
from flowstone.log.segments.batch_scan import DamagedBatch, scan
from flowstone.log.segments.segment import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX
from flowstone.log.segments.transaction_index_check import TransactionIndexCheck
from flowstone.ports.files import File, Files


class SegmentToCheck(NamedTuple):
    path: str  # of the segment's log file
    base_offset: int
    end_offset: int  # where the next segment begins
    size_bytes: int
    has_transaction_index: bool = False

    @property
    def transaction_index_path(self) -> str:
        return self.path.removesuffix(LOG_SUFFIX) + TRANSACTION_INDEX_SUFFIX


def check_segment(file: File, segment: SegmentToCheck, files: Files) -> str | None:
    """Return what is wrong with a segment, as a clause, or None if nothing is. Raises OSError if it cannot be read.

    `files` has the transaction index.
    """
    size_bytes = file.size()
    if size_bytes < segment.size_bytes:
        return f"it has {size_bytes} bytes and should have {segment.size_bytes}"
    next_offset = segment.base_offset
    batches = scan(
        file,
        0,
        segment.size_bytes,
        segment.base_offset,
        verify_from_offset=segment.base_offset,
        holes_end_max=segment.end_offset,
        inspect=why_unreadable,
    )
    check = TransactionIndexCheck()
    try:
        for position, header in batches:
            next_offset = header.next_offset
            check.add(header, partial(file.read, position, header.size_bytes))
    except DamagedBatch as damage:
        return str(damage)
    if next_offset != segment.end_offset:
        return f"it ends at offset {next_offset}, not at {segment.end_offset}"
    return _check_index(check, segment, files)


def _check_index(check: TransactionIndexCheck, segment: SegmentToCheck, files: Files) -> str | None:
    path = segment.transaction_index_path
    if segment.has_transaction_index and not files.exists(path):
        return f"its transaction index {path} is missing; the next start makes it again"
    data = files.read(path) if segment.has_transaction_index else b""
    reason = check.verdict(data, segment.base_offset, segment.end_offset)
    if reason is None:
        return None
    return f"its transaction index {path} does not match the log: {reason}; `flowstone log repair` has it rebuilt"
