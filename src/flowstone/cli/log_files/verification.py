"""Verification of a partition's files, for `flowstone log verify` and `repair`. Changes nothing.

A partition is good if every batch is whole with a correct checksum, offsets continue without gaps across segments to
the durable end, the log starts where the files beside it say (`log/lifecycle/extent_witnesses.py`), and the indexes of
sealed segments point to the right batches. A write that was interrupted (above the durable end, at the very end,
followed by nothing valid except after a power failure) is not damage: the next start truncates it. Zeros there are
preallocated space, not damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import NamedTuple

from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.progress import Advance
from flowstone.cli.log_files.survey import Damage, Preallocation, open_for_reading, segment_paths, walk
from flowstone.log.lifecycle.directory_identity import META_PROPERTIES, LogDirectory
from flowstone.log.lifecycle.durable_extents import LogExtents
from flowstone.log.lifecycle.extent_witnesses import Witnesses, find_missing, read_witnesses
from flowstone.log.lifecycle.stored_offsets import StoredOffsets
from flowstone.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX
from flowstone.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, IndexEntries
from flowstone.log.segments.torn_writes import has_missing_blocks
from flowstone.log.segments.transaction_index_check import TransactionIndexCheck
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition


class Missing(NamedTuple):
    """Records at the start of a log whose files no longer exist."""

    first_offset: int
    next_offset: int
    topic_id: bytes | None  # None if the partition has no directory
    reason: str


@dataclass
class PartitionReport:
    topic_partition: TopicPartition
    segment_count: int = 0
    record_count: int = 0
    first_offset: int = 0
    end_offset: int = 0
    damages: list[Damage] = field(default_factory=list)
    bad_indexes: list[str] = field(default_factory=list)
    bad_transaction_indexes: list[str] = field(default_factory=list)  # their paths; no start notices all of these
    unfinished: Damage | None = None
    missing: Missing | None = None

    @property
    def is_good(self) -> bool:
        return not self.damages and not self.bad_indexes and self.missing is None


class DataDirectory:
    """A broker's data directory, for reading. Raises CommandError if the path is none."""

    def __init__(self, path: str) -> None:
        if not os.path.isdir(path):
            raise CommandError(f"{path} is not a directory: name the broker's data directory")
        self.path = path
        self._directory = LogDirectory(SystemFiles(), path)
        self._found = set(self._directory.partitions())
        witnesses = self._witnesses()
        self._gone = dict(find_missing(witnesses, self._directory, self._found))
        self._stopped_cleanly = witnesses.clean

    def _witnesses(self) -> Witnesses:
        clean, extents = self._directory.take_clean_marker(), LogExtents(SystemFiles(), self.path)
        return read_witnesses(self._directory, extents, self._directory.partitions(), clean=clean)

    def partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """Return the partitions of one topic, or of all. Raises CommandError if the topic does not exist."""
        found = sorted(each for each in {*self._found, *self._gone} if topic in (None, each.topic))
        if topic is not None and not found:
            raise CommandError(f"{self.path} holds no partition of a topic {topic}")
        if not found and not os.path.exists(f"{self.path}/{META_PROPERTIES}"):
            raise CommandError(f"{self.path} is not a broker's data directory: it has no {META_PROPERTIES}")
        return found

    def size_bytes(self, partitions: Iterable[TopicPartition]) -> int:
        """Return the total size of the log files to verify."""
        there = [each for each in partitions if each not in self._gone]
        paths = (path for each in there for _base, path in segment_paths(f"{self.path}/{each}"))
        return sum(map(os.path.getsize, paths))

    def verify_all(self, partitions: Iterable[TopicPartition], advance: Advance) -> Iterator[PartitionReport]:
        """Yield a report per partition; call `advance` with the bytes done after every batch."""
        done = 0

        def count(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            advance(done)

        witnesses = self._witnesses()
        for topic_partition in partitions:
            gone = self._gone.get(topic_partition)
            if gone is not None:
                missing = Missing(
                    gone.stored.log_start_offset, gone.stored.promised_end, gone.topic_id, "the directory is missing"
                )
                yield PartitionReport(topic_partition, missing=missing)
                continue
            stored, path = witnesses.of(topic_partition), f"{self.path}/{topic_partition}"
            report = verify_partition(topic_partition, path, stored, count)
            if _missing_start(path, stored) is not None:  # or a running broker has deleted it meanwhile
                report.missing = _missing_start(path, self._witnesses().of(topic_partition))
            yield report


def _missing_start(directory: str, stored: StoredOffsets) -> Missing | None:
    """Return the records that are missing at a log's start: see `extent_witnesses.check_start`."""
    segments = segment_paths(directory)
    bases = [base_offset for base_offset, _path in segments]
    if not stored.is_start_known or (bases and bases[0] <= stored.log_start_offset):
        return None
    end = stored.promised_end
    if bases and (end > stored.log_start_offset or (stored.clean and not stored.is_end_known)):
        return Missing(stored.log_start_offset, bases[0], None, "the segments that had them are missing")
    if not bases and end > stored.log_start_offset:
        return Missing(stored.log_start_offset, end, None, "all segments are missing")
    return None


def verify_partition(
    topic_partition: TopicPartition, directory: str, stored: StoredOffsets, count: Callable[[int], None]
) -> PartitionReport:
    """Return the report on a partition's log files; call `count` with each batch's size."""
    # Without a witness, everything counts as above the recovery point, as in the broker.
    promised_end, clean = stored.promised_end, stored.clean
    report = PartitionReport(topic_partition)
    segments = segment_paths(directory)
    report.segment_count = len(segments)
    report.first_offset = report.end_offset = segments[0][0] if segments else 0
    for at, (base_offset, path) in enumerate(segments):
        is_last = at + 1 == len(segments)
        following = None if is_last else segments[at + 1][0]
        # The last segment's indexes are in the broker's memory; its index files may be older.
        segment = _look_over(path, base_offset, count, with_indexes=not is_last)
        report.record_count += segment.record_count
        report.end_offset = segment.end_offset
        unfinished = segment.find_unfinished(promised_end) if is_last and not clean else None
        if unfinished is not None:
            report.unfinished = segment.damages[unfinished]
            del segment.damages[unfinished:]
        else:
            bound = following if following is not None else max(promised_end, segment.end_offset)
            segment.close(bound, may_have_preallocation=not clean and (following is None or following >= promised_end))
        report.damages += segment.damages
        if not segment.damages:
            report.bad_indexes += segment.bad_indexes
            report.bad_transaction_indexes += segment.bad_transaction_indexes
    return report


@dataclass
class _SegmentReport:
    path: str
    end_offset: int
    preallocation: Preallocation | None = None
    record_count: int = 0
    leader_epoch: int = 0
    damages: list[Damage] = field(default_factory=list)
    bad_indexes: list[str] = field(default_factory=list)
    bad_transaction_indexes: list[str] = field(default_factory=list)

    @property
    def ends_damaged(self) -> bool:
        return bool(self.damages) and self.damages[-1].next_offset is None

    def find_unfinished(self, promised_end: int) -> int | None:
        """Return the index of the damage that starts an interrupted write, or None.

        Only the last segment after an unclean stop can contain one.
        """
        for at, damage in enumerate(self.damages):
            if damage.first_offset < promised_end:
                continue
            if damage.next_offset is None:
                return at
            if has_missing_blocks(open_for_reading(self.path), damage.position, damage.end_position):
                return at
        return None

    def close(self, bound: int, *, may_have_preallocation: bool) -> None:
        """Check that the segment's offsets reach exactly to `bound`, where the next segment starts."""
        if self.ends_damaged:
            self.damages[-1] = self.damages[-1]._replace(next_offset=bound)
            return
        if self.end_offset != bound:
            reason = f"the segment ends at offset {self.end_offset}, not at {bound}"
        elif self.preallocation is not None and not may_have_preallocation:
            reason = "zeros follow the last batch"
        else:
            return
        size_bytes = os.path.getsize(self.path)
        begin, end = self.preallocation[:2] if self.preallocation is not None else (size_bytes, size_bytes)
        self.damages.append(Damage(self.path, begin, end, self.end_offset, bound, reason, self.leader_epoch))


def _look_over(path: str, base_offset: int, count: Callable[[int], None], *, with_indexes: bool) -> _SegmentReport:
    report = _SegmentReport(path, base_offset)
    stem = path.removesuffix(LOG_SUFFIX)
    indexes = [_Index(stem + INDEX_SUFFIX, OFFSET_ENTRY), _Index(stem + TIME_INDEX_SUFFIX, TIME_ENTRY)]
    transactions, file = TransactionIndexCheck(), open_for_reading(path)
    for found in walk(file, base_offset, opens_batches=True):
        if isinstance(found, Damage):
            report.damages.append(found)
            report.end_offset = found.next_offset or report.end_offset
            continue
        if isinstance(found, Preallocation):
            report.preallocation = found
            continue
        header = found.header
        count(header.size_bytes)
        report.record_count += header.record_count
        report.end_offset = header.next_offset
        report.leader_epoch = header.partition_leader_epoch
        indexes[0].pass_batch(header.last_offset - base_offset, found.position)
        indexes[1].pass_batch(header.last_offset - base_offset, header.max_timestamp)
        transactions.add(header, partial(file.read, found.position, header.size_bytes))
    if with_indexes:
        report.bad_indexes = [index.verdict() for index in indexes if not index.is_good]
        _judge_transaction_index(report, stem + TRANSACTION_INDEX_SUFFIX, transactions, base_offset)
    return report


def _judge_transaction_index(report: _SegmentReport, path: str, check: TransactionIndexCheck, base_offset: int) -> None:
    """Compare a transaction index with the segment; a missing one is good, because the next start makes it again."""
    if not os.path.exists(path):
        return
    reason = check.verdict(_read(path), base_offset, report.end_offset)
    if reason is not None:
        report.bad_indexes.append(f"{path}: {reason}; `flowstone log repair` has it rebuilt")
        report.bad_transaction_indexes.append(path)


class _Index:
    """The entries of an index, compared with the batches of the segment.

    A missing index is good: the broker rebuilds it.
    """

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
        """Check the entries up to the batch that ends with this offset, relative to the segment."""
        while self._at < len(self._entries) and self._entries[self._at][0] <= last_offset:
            if self._entries[self._at] != (last_offset, expected):
                self._leads_right = False
            self._at += 1

    @property
    def is_good(self) -> bool:
        return self._leads_right and self._at == len(self._entries)

    def verdict(self) -> str:
        return f"{self._path}: it does not match the log; the broker rebuilds it when it needs it"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
