"""What a partition's files say about themselves, as `flowstone log verify` and `repair` need it. Changes no byte.

A partition is good when every batch is whole with its checksum right, offsets go on without a gap from segment to
segment up to the recovery point, and the indexes of sealed segments lead to the batches they name. A write that a stop
cut short (above the recovery point, at the very end, nothing good after it) is no damage: the next start cuts it off.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from struct import Struct

from flowstone.cli.errors import CommandError
from flowstone.cli.survey import Damage, open_for_reading, segment_paths, walk
from flowstone.log.checkpoints import RECOVERY_POINT_CHECKPOINT
from flowstone.log.index import OFFSET_ENTRY, TIME_ENTRY, IndexEntries
from flowstone.log.log_directory import LogDirectory
from flowstone.log.scanning import ScannedBatch
from flowstone.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from flowstone.ports.files import SystemFiles
from flowstone.types import TopicPartition


@dataclass
class PartitionReport:
    topic_partition: TopicPartition
    segment_count: int = 0
    record_count: int = 0
    first_offset: int = 0
    end_offset: int = 0
    damages: list[Damage] = field(default_factory=list)
    bad_indexes: list[str] = field(default_factory=list)
    unfinished: Damage | None = None

    @property
    def is_good(self) -> bool:
        return not self.damages and not self.bad_indexes


class DataDirectory:
    """A broker's data directory, to look at. CommandError if it is none."""

    def __init__(self, path: str) -> None:
        if not os.path.isdir(path):
            raise CommandError(f"{path} is no directory: name the broker's data directory")
        self.path = path
        self._directory = LogDirectory(SystemFiles(), path)
        self._recovery_points = self._directory.read_offsets(RECOVERY_POINT_CHECKPOINT)
        self._stopped_cleanly = self._directory.take_clean_marker()

    def partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """Of one topic, or of all. CommandError if there is no such topic."""
        found = sorted(each for each in self._directory.partitions() if topic in (None, each.topic))
        if topic is not None and not found:
            raise CommandError(f"{self.path} holds no partition of a topic {topic}")
        return found

    def verify(self, topic_partition: TopicPartition) -> PartitionReport:
        return verify_partition(
            topic_partition,
            f"{self.path}/{topic_partition}",
            # Without a checkpoint, everything counts as above the recovery point, as it does for the broker.
            self._recovery_points.get(topic_partition, 0),
            clean=self._stopped_cleanly,
        )


def verify_partition(
    topic_partition: TopicPartition, directory: str, recovery_point: int, *, clean: bool
) -> PartitionReport:
    """`clean`: the broker stopped cleanly, so that nothing can be an unfinished write."""
    report = PartitionReport(topic_partition)
    segments = segment_paths(directory)
    report.segment_count = len(segments)
    report.first_offset = report.end_offset = segments[0][0] if segments else 0
    for at, (base_offset, path) in enumerate(segments):
        batches, damages = _look_over(path, base_offset)
        report.record_count += sum(batch.header.record_count for batch in batches)
        report.end_offset = batches[-1].header.next_offset if batches else base_offset
        if at + 1 < len(segments):
            report.damages += _close(damages, batches, path, report.end_offset, segments[at + 1][0])
            report.bad_indexes += _check_indexes(path, base_offset, batches)
        elif not clean and report.end_offset >= recovery_point and damages and damages[-1].next_offset is None:
            report.unfinished = damages.pop()
            report.damages += damages
        else:
            bound = max(recovery_point, report.end_offset)
            report.damages += _close(damages, batches, path, report.end_offset, bound)
    return report


def _look_over(path: str, base_offset: int) -> tuple[list[ScannedBatch], list[Damage]]:
    batches: list[ScannedBatch] = []
    damages: list[Damage] = []
    for found in walk(open_for_reading(path), base_offset):
        if isinstance(found, Damage):
            damages.append(found)
        else:
            batches.append(found)
    return batches, damages


def _close(damages: list[Damage], batches: list[ScannedBatch], path: str, end_offset: int, bound: int) -> list[Damage]:
    """The damages of a segment whose offsets should reach exactly to `bound`, where something else begins."""
    if damages and damages[-1].next_offset is None:
        return [*damages[:-1], damages[-1]._replace(next_offset=bound)]
    if end_offset != bound:
        reason = f"the segment ends at offset {end_offset}, not at {bound}"
        size_bytes = os.path.getsize(path)
        epoch = batches[-1].header.partition_leader_epoch if batches else 0
        return [*damages, Damage(path, size_bytes, size_bytes, end_offset, bound, reason, epoch)]
    return damages


def _check_indexes(path: str, base_offset: int, batches: list[ScannedBatch]) -> list[str]:
    """What is wrong with a sealed segment's indexes. They follow from the log: the broker makes bad ones again."""
    stem = path.removesuffix(LOG_SUFFIX)
    by_last_offset = {batch.header.last_offset - base_offset: batch for batch in batches}
    wrong: list[str] = []
    for suffix, entry in ((INDEX_SUFFIX, OFFSET_ENTRY), (TIME_INDEX_SUFFIX, TIME_ENTRY)):
        entries = _read_index(stem + suffix, entry)
        if entries is None:
            wrong.append(f"{stem}{suffix}: missing or malformed")
            continue
        for key, value in zip(entries.keys, entries.values, strict=True):
            if suffix == INDEX_SUFFIX:
                batch = by_last_offset.get(key)
                leads_there = batch is not None and batch.position == value
            else:
                batch = by_last_offset.get(value)
                leads_there = batch is not None and batch.header.max_timestamp == key
            if not leads_there:
                wrong.append(f"{stem}{suffix}: the entry {key} -> {value} does not lead to the batch it names")
                break
    return wrong


def _read_index(path: str, entry: Struct) -> IndexEntries | None:
    try:
        with open(path, "rb") as file:
            return IndexEntries.decode(entry, file.read())
    except FileNotFoundError:
        return None
