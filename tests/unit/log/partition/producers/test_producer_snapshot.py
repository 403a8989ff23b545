from __future__ import annotations

import struct

import pytest
from fastcrc.crc32 import iscsi as crc32c

from flowstone.log.partition.producers.producer_snapshot import SnapshotEntry, decode_snapshot, encode_snapshot

ENTRIES = [SnapshotEntry(7, 2, 9, 104, 3, 1_000, -1, -1), SnapshotEntry(8, 0, -1, -1, 0, 2_000, 5, 90)]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_snapshot_is_read_as_it_was_written(count: int) -> None:
    assert decode_snapshot(encode_snapshot(ENTRIES[:count])) == ENTRIES[:count]


def test_bytes_after_the_last_entry_are_refused() -> None:
    assert decode_snapshot(encode_snapshot(ENTRIES) + b"\0") is None


def test_another_version_is_refused_even_with_a_correct_checksum() -> None:
    data = bytearray(encode_snapshot(ENTRIES))
    struct.pack_into(">h", data, 0, 2)
    struct.pack_into(">I", data, 2, crc32c(bytes(data[6:])))
    assert decode_snapshot(bytes(data)) is None
