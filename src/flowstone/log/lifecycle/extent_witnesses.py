"""Checks the start and end of a log's segments against what other durable files of its directory record."""

from __future__ import annotations

import posixpath
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from flowstone.errors import StorageFault
from flowstone.log.lifecycle.clean_stop_state import LeftLog, decode_clean_state
from flowstone.log.lifecycle.directory_identity import LogDirectory
from flowstone.log.lifecycle.durable_extents import LOG_EXTENTS, Extent, LogExtents
from flowstone.log.lifecycle.stored_offsets import OfflineLog, StoredOffsets
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.segments.checkpoints import LEADER_EPOCH_CHECKPOINT, LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from flowstone.log.segments.file_names import offset_in_name
from flowstone.log.segments.partition_directory import SNAPSHOT_SUFFIX
from flowstone.types import TopicPartition


class Witnesses(NamedTuple):
    """The start and end of each partition as recorded by the files of a log directory."""

    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    extents: Mapping[TopicPartition, Extent]
    left: Mapping[TopicPartition, LeftLog]
    clean: bool

    def of(self, topic_partition: TopicPartition) -> StoredOffsets:
        """Return the stored offsets of one partition."""
        recovery_point, log_start = self.recovery_points.get(topic_partition), self.log_starts.get(topic_partition)
        left = self.left.get(topic_partition)
        if left is not None and recovery_point is None:
            recovery_point, log_start = left.end_offset, left.log_start_offset
        extent = self._extent(topic_partition, recovery_point, log_start)
        if extent is not None:
            log_start = extent.log_start_offset
        return StoredOffsets(
            recovery_point or 0,
            log_start or 0,
            self.clean,
            durable_end=extent.durable_end if extent is not None else 0,
            is_start_known=log_start is not None,
            is_end_known=recovery_point is not None or extent is not None,
        )

    def topic_id_of(self, topic_partition: TopicPartition) -> bytes | None:
        """Return the topic id of a partition that may no longer have a directory."""
        if topic_partition in self.extents:
            return self.extents[topic_partition].topic_id
        return self.left[topic_partition].topic_id if topic_partition in self.left else None

    def _extent(
        self, topic_partition: TopicPartition, recovery_point: int | None, log_start: int | None
    ) -> Extent | None:
        """Return the partition's entry in the table, unless another program has written the checkpoints since."""
        extent = self.extents.get(topic_partition)
        if extent is None or (log_start is not None and extent.log_start_offset < log_start):
            return None
        checkpointed = (log_start, recovery_point)
        if self.clean and recovery_point is not None and checkpointed != (extent.log_start_offset, extent.durable_end):
            return None
        return extent


def check_start(topic_partition: TopicPartition, path: str, bases: Sequence[int], stored: StoredOffsets) -> None:
    """Raise StorageFault if records at the log's start were durable and no segment has them."""
    log_start, end = stored.log_start_offset, stored.promised_end
    if not stored.is_start_known or (bases and bases[0] <= log_start):
        return
    is_empty = end <= log_start if stored.is_end_known or not bases else not stored.clean
    if is_empty:
        return
    where = f"the first segment found begins at offset {bases[0]}" if bases else "no segment was found"
    witness = LOG_EXTENTS if stored.durable_end else LOG_START_CHECKPOINT
    raise StorageFault(
        f"{topic_partition} begins at offset {log_start}, says {witness}, and has records up to {end}, but {where}: "
        f"{missing_files(topic_partition, path)}"
    )


def check_end(topic_partition: TopicPartition, path: str, end_offset: int, stored: StoredOffsets) -> None:
    """Raise StorageFault if the log ends before an offset up to which it was durable."""
    if end_offset >= stored.promised_end:
        return
    witness = LOG_EXTENTS if stored.durable_end > stored.recovery_point else RECOVERY_POINT_CHECKPOINT
    raise StorageFault(
        f"{topic_partition} ends at offset {end_offset}, but was durable up to offset {stored.promised_end}, says "
        f"{witness}: {missing_files(topic_partition, path)}"
    )


def check_derived(
    topic_partition: TopicPartition,
    path: str,
    names: Sequence[str],
    epochs: LeaderEpochs | None,
    first_offset: int,
    end_offset: int,
    stored: StoredOffsets,
) -> None:
    """Raise StorageFault if, after a clean stop without its checkpoints, other files know of records that are not here.

    `names` are those in the partition's directory, `epochs` is what its file of leader epochs says.
    """
    if not stored.clean:
        return
    told = None
    entries = epochs.entries() if epochs is not None else []
    if not stored.is_start_known and entries and entries[0][1] < first_offset:
        told = f"begins at offset {first_offset}, but {LEADER_EPOCH_CHECKPOINT} begins at {entries[0][1]}"
    if not stored.is_end_known:
        snapshots = [offset for name in names if (offset := offset_in_name(name, SNAPSHOT_SUFFIX)) is not None]
        if snapshots and max(snapshots) > end_offset:
            told = f"ends at offset {end_offset}, but has a producer snapshot of {max(snapshots)}"
        if entries and entries[-1][1] > end_offset:
            told = f"ends at offset {end_offset}, but {LEADER_EPOCH_CHECKPOINT} goes up to {entries[-1][1]}"
    if told is not None:
        raise StorageFault(f"{topic_partition} {told}: {missing_files(topic_partition, path)}")


def missing_files(topic_partition: TopicPartition, path: str) -> str:
    return f"files are missing or cut short; {remedy(topic_partition, path)}"


def remedy(topic_partition: TopicPartition, path: str) -> str:
    """Return what an operator can do about a partition that is offline. `path` is the partition's directory."""
    return (
        f"restore the files from a copy, or see `flowstone log repair {posixpath.dirname(path)} "
        f"--topic {topic_partition.topic} --partition {topic_partition.partition}`"
    )


def read_witnesses(
    log_directory: LogDirectory, extents: LogExtents, found: Iterable[TopicPartition], *, clean: bool
) -> Witnesses:
    """Return what the files of a log directory say, of these partitions and of any others. Raises OSError."""
    recovery_points = log_directory.read_offsets(RECOVERY_POINT_CHECKPOINT)
    log_starts = log_directory.read_offsets(LOG_START_CHECKPOINT)
    left = decode_clean_state(log_directory.read_clean_state()) if clean else {}
    known = extents.read({*found, *recovery_points, *log_starts, *left})
    return Witnesses(recovery_points, log_starts, known, left, clean)


def find_missing(
    witnesses: Witnesses, log_directory: LogDirectory, found: Container[TopicPartition]
) -> Iterator[tuple[TopicPartition, OfflineLog]]:
    """Yield each partition that had records and has no directory, unless it was being deleted."""
    condemned = log_directory.condemned_partitions()
    for topic_partition in {*witnesses.extents, *witnesses.left}:
        topic_id, stored = witnesses.topic_id_of(topic_partition), witnesses.of(topic_partition)
        has_records = stored.is_start_known and stored.promised_end > stored.log_start_offset
        if topic_partition in found or topic_id is None or not has_records:
            continue
        if log_directory.condemned_name(topic_partition) in condemned:
            continue
        path = log_directory.file(str(topic_partition))
        fault = StorageFault(
            f"{topic_partition} has records from offset {stored.log_start_offset} to {stored.promised_end}, but its "
            f"directory {path} is not there: {missing_files(topic_partition, path)}"
        )
        yield topic_partition, OfflineLog(topic_id, stored, fault, is_missing=True)
