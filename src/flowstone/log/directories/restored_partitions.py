"""Partitions restored from a backup: turns staged directories, which the restore command has filled, into logs.

A staged directory lies in a log directory under a name that every start removes. It holds durable, whole segments with
their indexes, and a restore point that describes them. Three files are added: the topic id; the branch point
(`branch_point`), which says that the producers wrote to another topic, so that their sequence numbers are meaningless
here; and one that says that the topic is not in the metadata yet. When all of that is durable, the directory is renamed
to its final name; until the metadata contains the topic, a start deletes it. So a crash leaves no topic, or all of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.lifecycle.directory_identity import STAGED_SUFFIX
from flowstone.log.partition.inherited_transactions import InheritedTransactions, find_inherited, write_aborts
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.producer_state import ProducerStates
from flowstone.log.segments.branch_point import UNPUBLISHED, BranchPoint, branch_point_name, encode_branch_source
from flowstone.log.segments.checkpoints import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, encode_partition_metadata
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.file_names import offset_in_name
from flowstone.log.segments.partition_directory import SNAPSHOT_SUFFIX, PartitionDirectory
from flowstone.log.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    segment_path,
)
from flowstone.ports.clock import Clock
from flowstone.ports.files import Files
from flowstone.types import ZERO_UUID, TopicPartition

RESTORE_POINT = "restore-point"


class RestorePoint(NamedTuple):
    """The content of a staged directory: a topic's records from one offset up to, but not including, another."""

    source_topic: str
    log_start_offset: int
    end_offset: int


class _FoundSegment(NamedTuple):
    base_offset: int
    size_bytes: int
    offset_index_bytes: int | None
    time_index_bytes: int | None
    transaction_index_bytes: int | None


class StagedLog(NamedTuple):
    """A staged directory that lacks only its final name."""

    topic_partition: TopicPartition
    topic_id: bytes
    home: DirectoryLogs
    path: str
    point: RestorePoint
    segments: tuple[_FoundSegment, ...]
    epochs: bytes
    inherited: InheritedTransactions | None  # None if no transaction was open where the backup ended

    @property
    def leader_epoch(self) -> int:
        """Return the latest epoch of its batches, 0 if there are none: epochs never decrease in a log."""
        epochs = LeaderEpochs.decode(self.epochs)
        return max(epochs.latest, 0) if epochs is not None else 0


def staged_path(log_directory: str, partition: int, token: str) -> str:
    """Return the path where a partition of the restore with this token is staged."""
    return f"{log_directory}/{partition}.{token}{STAGED_SUFFIX}"


def encode_restore_point(point: RestorePoint) -> bytes:
    return json.dumps(point._asdict()).encode()


def _decode_restore_point(data: bytes) -> RestorePoint:
    point = RestorePoint(**json.loads(data))
    if not (isinstance(point.source_topic, str) and 0 <= point.log_start_offset <= point.end_offset):
        raise ValueError(point)
    return point


async def prepare(home: DirectoryLogs, path: str, topic_partition: TopicPartition, topic_id: bytes) -> StagedLog:
    """Make a staged directory durable except for its name. Raises ApiError if it is none, or the disk fails."""
    build = partial(_prepare, home.log_directory.files, path, topic_id)
    try:
        found = await asyncio.wrap_future(home.housekeeping.submit(build))
    except (ValueError, TypeError):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{path} is not what a restore has staged") from None
    except OSError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} cannot be used: {error}") from error
    return StagedLog(topic_partition, topic_id, home, path, *found)


def _prepare(
    files: Files, path: str, topic_id: bytes
) -> tuple[RestorePoint, tuple[_FoundSegment, ...], bytes, InheritedTransactions | None]:
    """Prepare the directory in a thread; return what is found in it."""
    point = _decode_restore_point(files.read(f"{path}/{RESTORE_POINT}"))
    names = files.names(path)
    bases = [base for name in names if (base := offset_in_name(name, LOG_SUFFIX)) is not None]
    if any(base > point.end_offset for base in bases):
        raise ValueError(bases)
    epochs_path = f"{path}/{LEADER_EPOCH_CHECKPOINT}"
    epochs = files.read(epochs_path) if files.exists(epochs_path) else b""
    branch_source = encode_branch_source(point.source_topic, ZERO_UUID)
    _write(files, f"{path}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
    _write(files, f"{path}/{branch_point_name(point.end_offset)}", branch_source)
    _write(files, f"{path}/{UNPUBLISHED}", b"")
    files.open(segment_path(path, point.end_offset, LOG_SUFFIX), create=True).sync()
    sealed = tuple(_find(files, path, base) for base in bases if base < point.end_offset)
    sizes = {each.base_offset: each.size_bytes for each in sealed}
    states = find_inherited(files, path, sizes, 0, point.end_offset, None) if sealed else ProducerStates()
    for name in names:
        if name == RESTORE_POINT or name.endswith(SNAPSHOT_SUFFIX):
            files.remove(f"{path}/{name}")
    inherited = _abort_open(files, path, point.end_offset, epochs, states) if len(states) else None
    files.sync_directory(path)
    return point, sealed, epochs, inherited


def _abort_open(
    files: Files, path: str, end_offset: int, epochs: bytes, states: ProducerStates
) -> InheritedTransactions:
    """Append abort markers for the transactions that were open where the backup ended; they are durable on return."""
    latest = (LeaderEpochs.decode(epochs) or LeaderEpochs()).latest
    inherited, written = write_aborts(files, path, end_offset, max(latest, 0), states)
    for file in written:
        file.sync()
    return inherited


def _write(files: Files, path: str, data: bytes) -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    file.write(0, [data])
    file.sync()


def _find(files: Files, path: str, base_offset: int) -> _FoundSegment:
    size_bytes = files.size(segment_path(path, base_offset, LOG_SUFFIX))
    suffixes = INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX
    indexes = [_size(files, segment_path(path, base_offset, suffix)) for suffix in suffixes]
    return _FoundSegment(base_offset, size_bytes, *indexes)


def _size(files: Files, path: str) -> int | None:
    """Return a file's size, or None if it does not exist."""
    return files.size(path) if files.exists(path) else None


async def install(staged: Sequence[StagedLog], config: TopicConfig, clock: Clock, handles: FileHandles) -> None:
    """Rename the directories to their final names, which must be free, and open their logs; return once durable.

    Raises ApiError if that fails: the directories are then removed now, or by the next start.
    """
    try:
        for each in staged:
            home = each.home
            assert not home.is_taken(each.topic_partition)
            home.log_directory.files.rename(each.path, home.partition_path(each.topic_partition))
            home.logs[each.topic_partition] = _open(each, config, clock, handles)
        for home in dict.fromkeys(each.home for each in staged):
            await home.housekeeping.in_thread(partial(home.log_directory.files.sync_directory, home.path))
            await home.housekeeping.checkpoint()
    except OSError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the topic cannot be restored: {error}") from error


def _open(staged: StagedLog, config: TopicConfig, clock: Clock, handles: FileHandles) -> PartitionLog:
    home, point = staged.home, staged.point
    path = home.partition_path(staged.topic_partition)
    directory = PartitionDirectory(home.log_directory.files, path, exists=True)
    log = PartitionLog(staged.topic_partition, staged.topic_id, config, clock, handles, directory)
    new = partial(Segment, handles, path, created_ms=clock.time_ms(), index_interval_bytes=config.index_interval_bytes)
    segments = []
    for each in staged.segments:
        segment = new(each.base_offset)
        segment.open_sealed(*each[1:])
        segments.append(segment)
    active = new(point.end_offset)
    segments.append(active)
    producers = ProducerStates()
    if staged.inherited is not None:
        producers = staged.inherited.take_up(active, clock.time_ms())
        directory.keep_snapshots([point.end_offset])
    epochs = LeaderEpochs.decode(staged.epochs) or LeaderEpochs()
    log_start_offset = max(point.log_start_offset, segments[0].base_offset)
    log.adopt(segments, log_start_offset, active.next_offset, epochs, producers)
    log.branch_point = BranchPoint(point.source_topic, ZERO_UUID, point.end_offset)
    return log
