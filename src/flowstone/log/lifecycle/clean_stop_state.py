"""The state of all logs at a clean stop, in one file, so that the next start need not read each log.

Owns the file `.flowstone-clean-state`: of every log its segments, the active one's indexes, epochs, producers and what
else a recovery would find. All of it is redundant: a start that cannot use the file, or an entry of it, finds the same
in the log's own files (`log_recovery`).

Rules:
- It is used only beside a clean-shutdown marker, and is removed before anything is written (`log_set`).
- A checksum covers all of it; a file that is not whole is ignored.
- An entry is used only if the partition's directory and every log file in it have the same stamps as at the stop: what
  another program has changed since is read again.
- The checkpoints take precedence: an entry that does not agree with them is ignored.

The file is a line with version, byte order and checksum, a line of JSON with an entry for each log, and the entries'
bytes, one after the other: the active segment's index entries, as arrays in memory are, and the producers' snapshot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from struct import Struct
from typing import Any, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from flowstone.config import MIB
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.log.segments.branch_point import BranchPoint
from flowstone.log.segments.compaction_job import CLEANED_SUFFIX
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.left_segment import LeftSegment
from flowstone.log.segments.partition_directory import DELETED_SUFFIX, PartitionDirectory
from flowstone.log.segments.segment import Segment
from flowstone.log.segments.segment_swap import SWAP_SUFFIX
from flowstone.log.segments.shared_files import TEMPORARY_SUFFIX
from flowstone.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, IndexEntries, SealedIndex
from flowstone.ports.clock import Clock
from flowstone.ports.files import Stamp
from flowstone.types import TopicPartition

# The most logs whose state is stored; for more, reading the file is no faster than reading the logs one by one.
CLEAN_STATE_BYTES_MAX = 64 * MIB
_VERSION = "2"  # version 1 had no transaction indexes
# Suffixes of files that recovery removes or renames.
_UNFINISHED_SUFFIXES = (DELETED_SUFFIX, TEMPORARY_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)


class _LeftSealed(NamedTuple):
    base_offset: int
    offset_index_bytes: int
    time_index_bytes: int
    transaction_index_bytes: int | None


class _LeftParts(NamedTuple):
    """The binary parts of an entry: the active segment's index entries and the producers' snapshot, if any."""

    offset_keys: bytes
    offset_values: bytes
    time_keys: bytes
    time_values: bytes
    aborts: bytes
    producers: bytes


class LeftLog(NamedTuple):
    """The state of one log at a clean stop."""

    topic_id: bytes
    log_start_offset: int
    end_offset: int
    directory: Stamp
    log_files: list[Stamp]  # of the segments, the active one last
    sealed: list[_LeftSealed]
    active: LeftSegment
    epochs: list[tuple[int, int]]
    snapshots: list[int]
    hole_ends: list[int]
    branch_point: BranchPoint | None
    parts: _LeftParts


def describe(log: PartitionLog) -> LeftLog | None:
    """Return the state of a durable log, or None if it can only be read from the files. Raises OSError."""
    files, directory, segments = log.files, log.directory, log.segments
    if not log.exists or log.store.is_torn or log.flushed_end != log.end:
        return None
    if any(name.endswith(_UNFINISHED_SUFFIXES) for name in files.names(directory.path)):
        return None
    sealed = []
    for segment in segments[:-1]:
        offsets, times = segment.indexes.offsets, segment.indexes.times
        if not isinstance(offsets, SealedIndex) or not isinstance(times, SealedIndex):
            return None
        aborts_bytes = segment.transactions.size_bytes if segment.transactions.has_file else None
        sizes = len(offsets) * OFFSET_ENTRY.size, len(times) * TIME_ENTRY.size, aborts_bytes
        sealed.append(_LeftSealed(segment.base_offset, *sizes))
    log_files = [files.stamp(segment.log.path) for segment in segments]
    if [each.size_bytes for each in log_files] != [segment.size_bytes for segment in segments]:
        return None
    offsets, times = segments.active.indexes.offsets, segments.active.indexes.times
    assert isinstance(offsets, IndexEntries)
    assert isinstance(times, IndexEntries)
    return LeftLog(
        log.topic_id,
        log.log_start_offset,
        log.log_end_offset,
        files.stamp(directory.path),
        log_files,
        sealed,
        segments.active.left(),
        list(log.epochs.entries()),
        directory.snapshots,
        directory.hole_ends,
        log.branch_point,
        _LeftParts(
            offsets.keys.tobytes(),
            offsets.values.tobytes(),
            times.keys.tobytes(),
            times.values.tobytes(),
            segments.active.transactions.read(),
            log.producers.encode_snapshot() if len(log.producers) else b"",
        ),
    )


def reopen(log: PartitionLog, directory: PartitionDirectory, handles: FileHandles, clock: Clock, left: LeftLog) -> bool:
    """Fill `log`, empty so far, from its state; return False if files changed since, so that it must be recovered."""
    files, interval_bytes, now_ms = directory.files, log.config.index_interval_bytes, clock.time_ms()
    bases = [*(each.base_offset for each in left.sealed), left.active.base_offset]
    segments = [
        Segment(handles, directory.path, base, created_ms=now_ms, index_interval_bytes=interval_bytes) for base in bases
    ]
    producers = ProducerStates.decode_snapshot(left.parts.producers) if left.parts.producers else ProducerStates()
    try:
        stamps = [files.stamp(segment.log.path) for segment in segments]
        if files.stamp(directory.path) != left.directory or stamps != left.log_files or producers is None:
            return False
    except OSError:
        return False
    for segment, stamp, each in zip(segments, stamps, left.sealed, strict=False):
        segment.open_sealed(stamp.size_bytes, *each[1:])
    offsets = _entries(OFFSET_ENTRY, left.parts.offset_keys, left.parts.offset_values)
    times = _entries(TIME_ENTRY, left.parts.time_keys, left.parts.time_values)
    segments[-1].open_left(left.active, offsets, times, left.parts.aborts)
    epochs = LeaderEpochs()
    for epoch, start_offset in left.epochs:
        epochs.assign(epoch, start_offset)
    directory.keep_snapshots(left.snapshots)
    directory.hole_ends = left.hole_ends
    log.branch_point = left.branch_point
    log.adopt(segments, left.log_start_offset, left.end_offset, epochs, producers)
    log.durability.note_as_closed()
    return True


def _entries(entry: Struct, keys: bytes, values: bytes) -> IndexEntries:
    entries = IndexEntries(entry)
    entries.keys.frombytes(keys)
    entries.values.frombytes(values)
    return entries


# The file


def encode_clean_state(logs: Iterable[tuple[TopicPartition, LeftLog | None]]) -> bytes:
    """Encode the states that are known."""
    rows, pieces, size_bytes = list[Any](), list[bytes](), 0
    for topic_partition, left in logs:
        if left is None:
            continue
        size_bytes += sum(map(len, left.parts))
        if size_bytes > CLEAN_STATE_BYTES_MAX:
            break
        rows.append(_row(topic_partition, left))
        pieces += left.parts
    body = json.dumps(rows, separators=(",", ":")).encode() + b"\n" + b"".join(pieces)
    return f"{_VERSION} {sys.byteorder} {crc32c(body):08x}\n".encode() + body


def decode_clean_state(data: bytes) -> dict[TopicPartition, LeftLog]:
    """Return the logs' states; empty if the data is not a whole file written on a machine of this kind."""
    head, _, body = data.partition(b"\n")
    if head != f"{_VERSION} {sys.byteorder} {crc32c(body):08x}".encode():
        return {}
    rows, _, pieces = body.partition(b"\n")
    found, at = {}, 0
    for row in json.loads(rows):
        parts = []
        for size_bytes in row[-1]:
            parts.append(pieces[at : at + size_bytes])
            at += size_bytes
        found[TopicPartition(*row[0])] = _left_log(row, parts)
    return found


def _row(topic_partition: TopicPartition, left: LeftLog) -> list[object]:
    point = left.branch_point
    return [
        topic_partition,
        left.topic_id.hex(),
        left.log_start_offset,
        left.end_offset,
        left.directory,
        left.log_files,
        left.sealed,
        left.active,
        left.epochs,
        left.snapshots,
        left.hole_ends,
        (point.source_topic, point.source_topic_id.hex(), point.offset) if point is not None else None,
        [len(each) for each in left.parts],
    ]


def _left_log(row: list[Any], parts: list[bytes]) -> LeftLog:
    """Decode one entry. The checksum over the file was verified, so its form is as it was written."""
    _, topic_id, log_start_offset, end_offset, directory, log_files, sealed, active, *lists, point, _ = row
    epochs, snapshots, hole_ends = lists
    return LeftLog(
        bytes.fromhex(topic_id),
        log_start_offset,
        end_offset,
        Stamp(*directory),
        [Stamp(*each) for each in log_files],
        [_LeftSealed(*each) for each in sealed],
        LeftSegment(*active),
        epochs,
        snapshots,
        hole_ends,
        BranchPoint(point[0], bytes.fromhex(point[1]), point[2]) if point is not None else None,
        _LeftParts(*parts),
    )
