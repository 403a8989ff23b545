"""Checks what a leader sent before it may enter a follower's log. Pure: bytes in, headers out, or `UnfitRecords`.

A follower stores its leader's bytes unchanged (R2), so no topic setting is checked here: the leader has validated the
batches. Damage on the way or on the leader's disk is detected: by each batch's checksum (R10), and, as checksums do not
cover them, by offsets and leader epochs, which must rise. Offsets may be missing, because compaction removed them.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.errors import ApiError, ErrorCode
from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, BatchHeader, CorruptBatch, checksum_matches, parse_header


class UnfitRecords(ApiError):
    """A leader's response is damaged, or does not continue the log: nothing of it was appended."""


class Replicated(NamedTuple):
    """The log's end before and after an append, without regard to missing offsets."""

    base_offset: int
    next_offset: int
    size_bytes: int


def check_batches(records: Bytes, next_offset: int, last_epoch: int, leader_epoch: int) -> list[BatchHeader]:
    """Return the headers of the whole batches; an incomplete one at the end is left out.

    `next_offset` and `last_epoch` are the log's so far, `leader_epoch` that of the leader that sent the bytes.
    """
    headers: list[BatchHeader] = []
    position = 0
    while len(records) - position >= HEADER_BYTES:
        try:
            header = parse_header(records, position)
        except CorruptBatch as error:
            raise UnfitRecords(error.code, str(error)) from error
        if position + header.size_bytes > len(records):
            break
        if not checksum_matches(records, position, header):
            raise UnfitRecords(ErrorCode.CORRUPT_MESSAGE, f"the checksum of the batch at {header.base_offset} is wrong")
        if header.last_offset_delta < 0 or header.record_count < 0:
            raise UnfitRecords(ErrorCode.CORRUPT_MESSAGE, f"the batch at {header.base_offset} has negative counts")
        if header.base_offset < next_offset:
            raise UnfitRecords(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"a batch at {header.base_offset}, where {next_offset} is next"
            )
        if not last_epoch <= header.partition_leader_epoch <= leader_epoch:
            raise UnfitRecords(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at {header.base_offset} is of leader epoch {header.partition_leader_epoch}, after one of "
                f"{last_epoch} and sent in {leader_epoch}",
            )
        headers.append(header)
        next_offset, last_epoch = header.next_offset, header.partition_leader_epoch
        position += header.size_bytes
    return headers
