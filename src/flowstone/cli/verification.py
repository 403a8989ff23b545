"""What a partition's files say about themselves, as `flowstone log verify` and `repair` need it. Changes no byte.

A partition is good when every batch is whole with its checksum right, offsets go on without a gap from segment to
segment up to the recovery point, and the indexes of sealed segments lead to the batches they name. A write that a stop
cut short (above the recovery point, at the very end, nothing good after it) is no damage: the next start cuts it off.
Nor are zeros there, which are room for more (`log.room`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from flowstone.cli.errors import CommandError
from flowstone.cli.progress import Advance
from flowstone.cli.survey import Damage, Room, open_for_reading, segment_paths, walk
from flowstone.log.checkpoints import RECOVERY_POINT_CHECKPOINT
from flowstone.log.index import OFFSET_ENTRY, TIME_ENTRY, IndexEntries
from flowstone.log.log_directory import LogDirectory
from flowstone.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from flowstone.ports.system_files import SystemFiles
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

    def size_bytes(self, partitions: Iterable[TopicPartition]) -> int:
        """Of the log files there are to verify."""
        paths = (path for each in partitions for _base, path in segment_paths(f"{self.path}/{each}"))
        return sum(map(os.path.getsize, paths))

    def verify_all(self, partitions: Iterable[TopicPartition], advance: Advance) -> Iterator[PartitionReport]:
        """Report by report; `advance` is told of every batch how many bytes are done."""
        done = 0

        def count(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            advance(done)

        for topic_partition in partitions:
            # Without a checkpoint, everything counts as above the recovery point, as it does for the broker.
            recovery_point = self._recovery_points.get(topic_partition, 0)
            yield verify_partition(
                topic_partition, f"{self.path}/{topic_partition}", recovery_point, count, clean=self._stopped_cleanly
            )


def verify_partition(
    topic_partition: TopicPartition, directory: str, recovery_point: int, count: Callable[[int], None], *, clean: bool
) -> PartitionReport:
    """`count` gets each batch's size; `clean`: the broker stopped cleanly, so that nothing is an unfinished write."""
    report = PartitionReport(topic_partition)
    segments = segment_paths(directory)
    report.segment_count = len(segments)
    report.first_offset = report.end_offset = segments[0][0] if segments else 0
    for at, (base_offset, path) in enumerate(segments):
        is_last = at + 1 == len(segments)
        following = None if is_last else segments[at + 1][0]
        # The last segment's indexes are in the broker's memory; what may be in the files is older.
        segment = _look_over(path, base_offset, count, with_indexes=not is_last)
        report.record_count += segment.record_count
        report.end_offset = segment.end_offset
        if is_last and not clean and segment.ends_damaged and segment.end_offset >= recovery_point:
            report.unfinished = segment.damages.pop()
        else:
            bound = following if following is not None else max(recovery_point, segment.end_offset)
            segment.close(bound, may_have_room=not clean and (following is None or following >= recovery_point))
        report.damages += segment.damages
        if not segment.damages:
            report.bad_indexes += segment.bad_indexes
    return report


@dataclass
class _SegmentReport:
    path: str
    end_offset: int
    room: Room | None = None
    record_count: int = 0
    leader_epoch: int = 0
    damages: list[Damage] = field(default_factory=list)
    bad_indexes: list[str] = field(default_factory=list)

    @property
    def ends_damaged(self) -> bool:
        return bool(self.damages) and self.damages[-1].next_offset is None

    def close(self, bound: int, *, may_have_room: bool) -> None:
        """The segment's offsets should reach exactly to `bound`, where something else begins."""
        if self.ends_damaged:
            self.damages[-1] = self.damages[-1]._replace(next_offset=bound)
            return
        if self.end_offset != bound:
            reason = f"the segment ends at offset {self.end_offset}, not at {bound}"
        elif self.room is not None and not may_have_room:
            reason = "zeros follow the last batch"
        else:
            return
        size_bytes = os.path.getsize(self.path)
        begin, end = self.room[:2] if self.room is not None else (size_bytes, size_bytes)
        self.damages.append(Damage(self.path, begin, end, self.end_offset, bound, reason, self.leader_epoch))


def _look_over(path: str, base_offset: int, count: Callable[[int], None], *, with_indexes: bool) -> _SegmentReport:
    report = _SegmentReport(path, base_offset)
    stem = path.removesuffix(LOG_SUFFIX)
    indexes = [_Index(stem + INDEX_SUFFIX, OFFSET_ENTRY), _Index(stem + TIME_INDEX_SUFFIX, TIME_ENTRY)]
    for found in walk(open_for_reading(path), base_offset, opens_batches=True):
        if isinstance(found, Damage):
            report.damages.append(found)
            report.end_offset = found.next_offset or report.end_offset
            continue
        if isinstance(found, Room):
            report.room = found
            continue
        header = found.header
        count(header.size_bytes)
        report.record_count += header.record_count
        report.end_offset = header.next_offset
        report.leader_epoch = header.partition_leader_epoch
        indexes[0].pass_batch(header.last_offset - base_offset, found.position)
        indexes[1].pass_batch(header.last_offset - base_offset, header.max_timestamp)
    if with_indexes:
        report.bad_indexes = [index.verdict() for index in indexes if not index.is_good]
    return report


class _Index:
    """An index's entries, followed along the batches they name. A missing index is good: the broker makes it again."""

    def __init__(self, path: str, entry: Struct) -> None:
        self._path = path
        entries = IndexEntries.decode(entry, _read(path))
        self._leads_right = entries is not None
        if entries is None:
            self._entries: list[tuple[int, int]] = []
        elif entry is OFFSET_ENTRY:
            self._entries = list(zip(entries.keys, entries.values, strict=True))
        else:
            self._entries = list(zip(entries.values, entries.keys, strict=True))
        self._at = 0

    def pass_batch(self, last_offset: int, expected: int) -> None:
        """The batch that ends with this offset, relative to the segment, and what an entry for it must say."""
        while self._at < len(self._entries) and self._entries[self._at][0] <= last_offset:
            if self._entries[self._at] != (last_offset, expected):
                self._leads_right = False
            self._at += 1

    @property
    def is_good(self) -> bool:
        return self._leads_right and self._at == len(self._entries)

    def verdict(self) -> str:
        return f"{self._path}: it does not fit the log; the broker makes it again when it needs it"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
