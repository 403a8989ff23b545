"""What a leader sent must be before it may enter a follower's log. Pure: bytes in, headers out or `UnfitRecords`.

A follower stores the very bytes of its leader (R2), so that here nothing is changed and no setting is asked: what the
leader took was good, however large. What may have gone wrong on the way or on the leader's disk is checked: each
batch's checksum (R10), and what checksums do not cover, offsets and leader epochs, as far as they must rise. Offsets
may be missing: compaction took them.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.errors import ApiError, ErrorCode
from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, BatchHeader, CorruptBatch, checksum_matches, parse_header


class UnfitRecords(ApiError):
    """A leader's answer that is damaged, or does not go on where the log ends: nothing of it was appended."""


class Replicated(NamedTuple):
    """What was appended: the log's end before and after, without regard to offsets that are missing."""

    base_offset: int
    next_offset: int
    size_bytes: int


def check_batches(records: Bytes, next_offset: int, last_epoch: int, leader_epoch: int) -> list[BatchHeader]:
    """The headers of the whole batches; what is cut short at the end is left out.

    `next_offset` and `last_epoch` are those of the log so far, `leader_epoch` the one of who sent this.
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
