"""What a machine's disk holds of a partition, read batch by batch from the bytes themselves, written and durable.

Read on from where the last look ended, for that is what most looks find: more of the same. Every batch is known by its
offset and epoch, and by a checksum of everything up to its end: R2 says that two replicas that agree on the first two
agree on the third. If the beginning of a log is deleted, the checksum of what is gone is the one that another replica
had before the first batch that is left.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from struct import Struct
from typing import NamedTuple

from flowstone.types import TopicPartition

from .disk import SimulatedDisk

_HEADER = Struct(">qii7xi")  # base offset, size, leader epoch; last offset delta
_SIZE_PREFIX_BYTES = 12
_SEGMENT_SUFFIX = ".log"

# The checksum of what lies before a batch, by its offset and epoch: of one partition, for all its replicas.
Pasts = dict[tuple[int, int], int]


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    epoch: int
    checksum: int  # of the log up to the batch's end


class ReplicaLog:
    """One partition's bytes on one disk, of one kind: written, or durable."""

    def __init__(self, disk: SimulatedDisk, path: str, pasts: Pasts, *, durable: bool) -> None:
        self._disk, self._path, self._pasts, self._durable = disk, path, pasts, durable
        self._begin()

    def _begin(self) -> None:
        self._version = self._disk.version
        self.batches: list[Batch] = []
        self.begin_offset = 0  # what lies before it is deleted, and cannot be compared
        self._positions: dict[str, int] = {}  # by segment

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.begin_offset

    def checksum_at(self, offset: int) -> int | None:
        """Of what lies below the offset; None if no batch ends there."""
        if offset == 0:
            return 0
        index = bisect_right(self.batches, offset, key=lambda batch: batch.next_offset) - 1
        batch = self.batches[index] if index >= 0 else None
        return batch.checksum if batch is not None and batch.next_offset == offset else None

    def read_on(self) -> list[Batch]:
        """What is new since the last time; everything, if something was taken away meanwhile."""
        if self._disk.version != self._version:
            self._begin()
        known = len(self.batches)
        for name, data in self._disk.contents(self._path, _SEGMENT_SUFFIX, durable=self._durable):
            if not self._positions:
                self.begin_offset = int(name.removesuffix(_SEGMENT_SUFFIX))
            position = self._positions.setdefault(name, 0)  # also of a segment that is empty
            if position < len(data):
                self._positions[name] = self._parse(data, position)
        return self.batches[known:]

    def _parse(self, data: bytes | bytearray, position: int) -> int:
        checksum = self.batches[-1].checksum if self.batches else 0
        while position + _HEADER.size <= len(data):
            base_offset, size, epoch, last_delta = _HEADER.unpack_from(data, position)
            end = position + _SIZE_PREFIX_BYTES + size
            if size <= 0 or end > len(data):
                break
            past = self._pasts.setdefault((base_offset, epoch), checksum)
            checksum = zlib.crc32(data[position:end], checksum if self.batches else past)
            self.batches.append(Batch(base_offset, base_offset + last_delta + 1, epoch, checksum))
            position = end
        return position


class Replica:
    def __init__(self, disk: SimulatedDisk, directory: str, partition: TopicPartition, pasts: Pasts) -> None:
        self.disk = disk
        path = f"{directory}/{partition}"
        self.written = ReplicaLog(disk, path, pasts, durable=False)
        self.durable = ReplicaLog(disk, path, pasts, durable=True)
