"""Survey of log files without changes: valid batches, damage, and where valid batches continue.

The walk uses `log/segments/batch_scan.py`; this module adds the search for the next valid batch after a damaged one, so
that one flipped bit does not hide the data after it. Files are opened read-only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from flowstone.log.partition.readability import why_unreadable
from flowstone.log.segments.batch_scan import DamagedBatch, ScannedBatch, UnreadableBatch, scan
from flowstone.log.segments.file_names import offset_in_name
from flowstone.log.segments.preallocation import ZEROS_BYTES_MAX, written_end
from flowstone.log.segments.segment import LOG_SUFFIX
from flowstone.log.segments.torn_writes import next_good_batch
from flowstone.ports.files import File
from flowstone.ports.system_files import SystemFile


class Damage(NamedTuple):
    """A range of a log file without a valid batch."""

    path: str
    position: int
    end_position: int
    first_offset: int  # the first offset that is lost
    next_offset: int | None  # the first valid one after it; None: nothing valid follows in this file
    reason: str
    leader_epoch: int  # of the valid batch before it, or else after it


class Preallocation(NamedTuple):
    """Preallocated space at the end of a log file: zeros, unless the log should continue there."""

    position: int
    end_position: int
    next_offset: int

    def as_damage(self, path: str) -> Damage:
        """Return the zeros as damage, because a file that is followed by another has no preallocated space."""
        return Damage(path, self.position, self.end_position, self.next_offset, None, "zeros follow the last batch", 0)


def open_for_reading(path: str) -> File:
    return SystemFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def segment_paths(directory: str) -> list[tuple[int, str]]:
    """Return the base offset and path of each log file of a partition, in order."""
    found = [(offset_in_name(name, LOG_SUFFIX), f"{directory}/{name}") for name in sorted(os.listdir(directory))]
    return [(base_offset, path) for base_offset, path in found if base_offset is not None]


def walk(
    file: File, base_offset: int, *, opens_batches: bool = False
) -> Iterator[ScannedBatch | Damage | Preallocation]:
    """Yield every valid batch of a log file, the damage between them, and preallocated space at its end.

    With `opens_batches`, a batch whose records cannot be read counts as damage too. A broker may be running: it writes
    into the preallocated space, and truncates it when it starts another file.
    """
    end = file.size()
    position, next_offset, last = 0, base_offset, written_end(file, end)
    epoch: int | None = None
    while position < end:
        try:
            inspect = why_unreadable if opens_batches else None
            for batch in scan(file, position, end, next_offset, verify_from_offset=0, inspect=inspect):
                yield batch
                position, next_offset = batch.position + batch.header.size_bytes, batch.header.next_offset
                epoch = batch.header.partition_leader_epoch
        except UnreadableBatch as unreadable:
            yield _as_damage(file.path, unreadable)
            position, next_offset = unreadable.position + unreadable.header.size_bytes, unreadable.header.next_offset
            epoch = unreadable.header.partition_leader_epoch
        except DamagedBatch as damage:
            if file.size() < end:
                end = file.size()
                last = min(last, end)
                continue
            if position >= last and end - position <= ZEROS_BYTES_MAX:
                yield Preallocation(position, end, next_offset)
                return
            found = next_good_batch(file, position, end, base_offset, next_offset)
            if found is None:
                yield Damage(file.path, position, end, next_offset, None, damage.reason, epoch or 0)
                return
            header = found.header
            epoch = header.partition_leader_epoch if epoch is None else epoch
            yield Damage(file.path, position, found.position, next_offset, header.base_offset, damage.reason, epoch)
            position, next_offset = found.position, header.base_offset


def _as_damage(path: str, batch: UnreadableBatch) -> Damage:
    header, end_position = batch.header, batch.position + batch.header.size_bytes
    epoch = header.partition_leader_epoch
    return Damage(path, batch.position, end_position, header.base_offset, header.next_offset, batch.reason, epoch)
