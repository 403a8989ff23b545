"""Records where each log of a directory begins and up to where it is durable, updated with every flush.

Owns the file `.flowstone-log-extents`: a table with one entry of fixed size per partition, which the event loop
overwrites in place and does not sync. After a killed process the page cache still has the newest entries, so that a
start knows exactly what was durable. After a power loss an entry may be older, and is still true: a log's durable end
only grows. Where a log is cut on purpose, or begins later, the table is synced before any file changes and before the
checkpoints are replaced (`housekeeping`), so that an entry is never older than the checkpoints.

The checkpoints, in Kafka's format, say the same as of their last writing. An entry has a checksum of its own and lies
within one sector of a disk; one that is not whole counts as missing. An error, a full disk among them, leaves old
entries, which are still true; the next `sync` writes the file anew.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.partition_directory import NO_SPACE
from flowstone.ports.files import File, Files
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

LOG_EXTENTS = ".flowstone-log-extents"
ENTRY_BYTES = 64  # a disk sector holds a whole number of entries
RANGE_LOGS_MIN = 8  # from this many entries on, one call writes them and those in between
_HASH_BYTES = 16
# Hash of the partition's name, topic id, log start, durable end; a checksum over them follows.
_BODY = Struct(f">{_HASH_BYTES}s16sqq")
_CHECKSUM = Struct(">I")
_NO_ENTRY = bytes(ENTRY_BYTES)


class Extent(NamedTuple):
    topic_id: bytes
    log_start_offset: int
    durable_end: int


class LogExtents:
    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self.path = f"{directory}/{LOG_EXTENTS}"
        self._file: File | None = None
        self._table = bytearray()
        self._slots: dict[TopicPartition, int] = {}
        self._written: dict[TopicPartition, Extent] = {}
        self._free: list[int] = []

    def read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Extent]:
        """Return the extents that the last run stored for these partitions. Waits for the disk. Raises OSError."""
        data = self._files.read(self.path) if self._files.exists(self.path) else b""
        found: dict[bytes, Extent] = {}
        for at in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
            body = data[at : at + _BODY.size]
            (checksum,) = _CHECKSUM.unpack_from(data, at + _BODY.size)
            if checksum == crc32c(body) and any(body):
                name, topic_id, log_start_offset, durable_end = _BODY.unpack(body)
                found[name] = Extent(topic_id, log_start_offset, durable_end)
        return {each: found[name] for each in partitions if (name := _name_hash(each)) in found}

    def start(self, extents: Mapping[TopicPartition, Extent]) -> None:
        """Replace the file by one with these extents, durably. Waits for the disk. Raises OSError, but not for a full
        disk.
        """
        self._table = bytearray(b"".join(_encode(*each) for each in extents.items()))
        self._slots = {each: at * ENTRY_BYTES for at, each in enumerate(extents)}
        self._written = dict(extents)
        try:
            self.sync()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def put(self, topic_partition: TopicPartition, extent: Extent) -> None:
        """Replace the entry of one partition, for tools that change a stopped broker's files. Raises OSError."""
        data = bytearray(self._files.read(self.path) if self._files.exists(self.path) else b"")
        name, slots = _name_hash(topic_partition), range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES)
        slot = next((at for at in slots if data[at : at + _HASH_BYTES] == name), len(slots) * ENTRY_BYTES)
        data[slot : slot + ENTRY_BYTES] = _encode(topic_partition, extent)
        self._files.replace(self.path, bytes(data))

    def note(self, logs: Iterable[PartitionLog]) -> None:
        """Write the extents of these logs without waiting for the disk. After an error, `sync` writes them."""
        changed: list[int] = []
        for log in logs:
            topic_partition = log.topic_partition
            extent = Extent(log.topic_id, log.log_start_offset, log.flushed_end.offset)
            if not log.directory.exists or log.is_forgotten or self._written.get(topic_partition) == extent:
                continue
            slot = self._slots.get(topic_partition)
            if slot is None:
                slot = self._new_slot(topic_partition)
            self._written[topic_partition] = extent
            body = _BODY.pack(self._table[slot : slot + _HASH_BYTES], *extent)
            self._table[slot : slot + _BODY.size + _CHECKSUM.size] = body + _CHECKSUM.pack(crc32c(body))
            changed.append(slot)
        self._write(changed)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Drop the entry of a partition that was deleted."""
        slot = self._slots.pop(topic_partition, None)
        if slot is not None:
            del self._written[topic_partition]
            self._table[slot : slot + ENTRY_BYTES] = _NO_ENTRY
            self._free.append(slot)
            self._write([slot])

    def sync(self) -> None:
        """Make all noted extents durable. For a worker thread. Raises OSError."""
        file = self._file
        if file is None:
            self._files.replace(self.path, bytes(self._table))
            self._file = self._files.open(self.path)
        else:
            file.sync()

    def _new_slot(self, topic_partition: TopicPartition) -> int:
        slot = self._slots[topic_partition] = self._free.pop() if self._free else len(self._table)
        self._table[slot : slot + ENTRY_BYTES] = _NO_ENTRY
        self._table[slot : slot + _HASH_BYTES] = _name_hash(topic_partition)
        return slot

    def _write(self, slots: list[int]) -> None:
        if not slots or self._file is None:
            return
        if len(slots) >= RANGE_LOGS_MIN:
            ranges = [(min(slots), max(slots) + ENTRY_BYTES)]
        else:
            ranges = [(slot, slot + ENTRY_BYTES) for slot in slots]
        try:
            for begin, end in ranges:
                self._file.write(begin, [self._table[begin:end]])
        except OSError as error:
            logger.warning("%s cannot be written; the next sync rewrites it: %s", self.path, error)
            self._file = None


def _name_hash(topic_partition: TopicPartition) -> bytes:
    return blake2b(str(topic_partition).encode(), digest_size=_HASH_BYTES).digest()


def _encode(topic_partition: TopicPartition, extent: Extent) -> bytes:
    body = _BODY.pack(_name_hash(topic_partition), *extent)
    return (body + _CHECKSUM.pack(crc32c(body))).ljust(ENTRY_BYTES, b"\0")
