"""Kafka's file format of producer snapshots, version 1: encodes and decodes entries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

_VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")


class SnapshotEntry(NamedTuple):
    """One producer, with the fields and in the order of the file."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int  # -1: the log contains only a marker of this producer
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int  # -1: no marker was seen
    transaction_first_offset: int  # -1: no transaction is open


def encode_snapshot(entries: Sequence[SnapshotEntry]) -> bytes:
    body = b"".join([_COUNT.pack(len(entries)), *(_ENTRY.pack(*entry) for entry in entries)])
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[SnapshotEntry] | None:
    """Return the entries, or None if the bytes are not a complete snapshot of version 1."""
    if len(data) < _HEAD.size + _COUNT.size:
        return None
    version, checksum = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    (count,) = _COUNT.unpack_from(body)
    if version != _VERSION or checksum != crc32c(body) or len(body) != _COUNT.size + count * _ENTRY.size:
        return None
    return [SnapshotEntry._make(entry) for entry in _ENTRY.iter_unpack(body[_COUNT.size :])]
