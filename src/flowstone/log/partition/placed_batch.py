"""A client's batch with its offsets assigned: its bytes in the log, and what the client is answered. Pure."""

from __future__ import annotations

from typing import NamedTuple

from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, PREFIX_BYTES, BatchHeader, encode_header, prefix


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1: the producer's timestamps were kept
    log_start_offset: int
    duplicate: bool  # the log already contained this batch


def place_batch(
    records: Bytes, header: BatchHeader, stored: BatchHeader, base_offset: int, leader_epoch: int
) -> list[Bytes]:
    """Return the batch's bytes as stored in the log; all but the first few are the client's own."""
    if stored is header:
        return [prefix(base_offset, header.batch_length, leader_epoch), memoryview(records)[PREFIX_BYTES:]]
    payload = memoryview(records)[HEADER_BYTES:]
    placed = stored._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
    return [encode_header(placed, payload), payload]
