"""The types and checks shared by both implementations of compaction, compaction_native.py and compaction_twin.py.

Keep equal to compaction.h. The module knows batches and records, but no files, segments, codecs or transactions: a walk
stops where one of these is needed.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from flowstone.types import Bytes

SLOT_BYTES = 24  # a key's hash and its offset
LOAD_PERCENT_MAX = 80  # with more, lookups take too long
SEED_BYTES = 16
OUTPUT_PER_INPUT_MAX = 3  # a record of 7 bytes may grow by 10 when its timestamp is written anew

CODEC_MASK, LOG_APPEND_TIME_FLAG = 0x07, 0x08
TRANSACTIONAL_FLAG, CONTROL_FLAG, DELETE_HORIZON_FLAG = 0x10, 0x20, 0x40
NO_TIMESTAMP = -1
HEADER_BYTES = 61
OFFSET_ENTRY, TIME_ENTRY = Struct(">ii"), Struct(">qi")  # of a segment's indexes
INDEXED_MAX = 2**31 - 1  # the largest offset, counted from the segment's first one, and position in an entry


class Stop(IntEnum):
    """The reason why a walk over batches ended. Keep equal to `enum stop` in compaction.h."""

    MORE = 0  # the rest of the buffer is not a whole batch
    COMPRESSED = 1  # the next batch must be decompressed first
    TRANSACTIONAL = 2  # the next batch is part of a transaction
    FULL = 3  # the map is full
    DONE = 4  # the next batch starts at the requested end
    OUTPUT_FULL = 5  # the output may not have enough space for the next batch
    DAMAGED = 6


class Damage(IntEnum):
    """The defect of the next batch. Keep equal to `enum damage` in compaction.h."""

    NO_DAMAGE = 0
    BAD_HEADER = 1
    OUT_OF_ORDER = 2
    BAD_CHECKSUM = 3
    BAD_RECORD = 4


class Walk(NamedTuple):
    """The position at which a walk ended, the lowest offset that the next batch may have, and the reason."""

    stop: Stop
    position: int
    next_offset: int
    needed_bytes: int  # with MORE: how many bytes the next batch takes, or its header
    damage: Damage


class BatchFields(NamedTuple):
    """The fields of a batch header that the filter needs."""

    base_offset: int
    last_offset: int
    base_timestamp: int
    record_count: int
    attributes: int


class FilteredRecords(NamedTuple):
    payload: Bytes
    kept_count: int
    max_timestamp: int
    has_new_horizon: bool
    changed: bool


# Errors of the caller raise ValueError in both forms: C would read or write outside its memory, and -O removes
# `assert` statements.


def map_capacity(memory_bytes: int, seed: bytes) -> int:
    """Return how many keys a map of that size can hold. Raises ValueError if it is too small or the seed is invalid."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"the seed has {len(seed)} bytes, not {SEED_BYTES}")
    capacity = memory_bytes // SLOT_BYTES * LOAD_PERCENT_MAX // 100
    if capacity == 0:
        raise ValueError(f"{memory_bytes} bytes cannot hold a key")
    return capacity


def check_position(buffer: Bytes, position: int) -> None:
    """Raise ValueError unless the position is in the buffer or at its end."""
    if not 0 <= position <= len(buffer):
        raise ValueError(f"position {position} of {len(buffer)} bytes")


def check_output(unused_bytes: int, wanted_bytes: int) -> None:
    """Raise ValueError unless the output has `wanted_bytes` left."""
    if wanted_bytes > unused_bytes:
        raise ValueError(f"{wanted_bytes} bytes for an output that has {unused_bytes} left")


def check_taken(untaken_bytes: int) -> None:
    """Raise ValueError unless the caller has taken all bytes of the output."""
    if untaken_bytes:
        raise ValueError(f"{untaken_bytes} bytes of output were not taken")


def not_indexable(position: int) -> ValueError:
    """Return the error for a position that is no batch or that the segment's index cannot represent."""
    return ValueError(
        f"the batch at position {position} is damaged, or its offset or position is {INDEXED_MAX + 1} or more "
        "beyond the beginning of the segment"
    )


class BadRecord(Exception):
    """A payload does not match its batch's header although its checksum is correct: its producer wrote it so."""
