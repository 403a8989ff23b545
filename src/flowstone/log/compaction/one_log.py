"""The compaction of one log, in the process that compacts: old segments in, `.cleaned` segments out.

Two passes, both in the kernel, both over whole files in large reads. `build_map` learns the last offset of every key of
the dirty part, as many as fit into memory; `clean` then writes a group of segments anew without the records that were
overwritten. Where not all keys fit, the map ends early and the next round goes on from there.

Compaction changes no file of the log: it writes new ones, and `segment_swap` puts them in place. Every checksum is
verified before a byte is used; damage ends the run (`CompactionError`).

A batch that is kept, whole or in part, has the same offsets, sequence numbers, codec and position in the order. The
last batch of every group is kept, even if it is empty: a segment ends where the next begins, so a missing one is
detected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from flowstone.kernel.compaction import (
    CONTROL_FLAG,
    LOAD_PERCENT_MAX,
    SEED_BYTES,
    SLOT_BYTES,
    TRANSACTIONAL_FLAG,
    BadRecord,
    OffsetMap,
    Stop,
    Walk,
)
from flowstone.log.compaction.filter import GroupFilter
from flowstone.log.compaction.output import CleanedOutput
from flowstone.log.compaction.transactions import Transactions
from flowstone.log.compaction.walk import StoppedAt, Then, walk_segment
from flowstone.log.segments.batch_scan import DamagedBatch, scan
from flowstone.log.segments.compaction_job import CleanedSegment, CompactionError, CompactionJob, SourceSegment
from flowstone.log.segments.segment import LOG_SUFFIX, segment_path
from flowstone.log.workers.throttle import Throttle
from flowstone.ports.files import File, Files
from flowstone.ports.memory import lazy_buffer
from flowstone.wire.record_batch import HEADER_BYTES, BatchHeader

MAP_KEYS_MIN = 16


class Compaction:
    def __init__(self, files: Files, job: CompactionJob, throttle: Throttle) -> None:
        self._files, self._job, self._throttle = files, job, throttle
        self._known_transactions: Transactions | None = None  # None: no transactional batch was met so far
        self._limit_offset = job.end_offset
        self._map = OffsetMap(lazy_buffer(_map_bytes(job)), os.urandom(SEED_BYTES))
        self._map.mapped_end = job.first_dirty_offset
        self._filter: GroupFilter | None = None

    def build_map(self) -> int:
        """Map keys from the first dirty offset on; return where the map ends. Raises OSError or CompactionError."""
        for segment in (segment for group in self._job.groups for segment in group):
            if segment.end_offset > self._job.first_dirty_offset and not self._map_segment(segment):
                break
        return self._map.mapped_end

    def clean(self, group: tuple[SourceSegment, ...]) -> CleanedSegment:
        """Write a group's new segment. Raises OSError, or CompactionError if the log is damaged."""
        if self._filter is None:
            self._filter = GroupFilter(self._map, self._job, self._transactions, self._throttle)
        output = CleanedOutput(self._files, self._job.directory, group, self._job.index_interval_bytes, self._throttle)
        filled = [segment for segment in group if segment.size_bytes]
        for segment in filled:
            self._filter.clean(self._open(segment), segment, output, is_last=segment is filled[-1])
        return output.finish(self._filter.removed_markers)

    def _open(self, segment: SourceSegment) -> File:
        return self._files.open(segment_path(self._job.directory, segment.base_offset, LOG_SUFFIX))

    def _map_segment(self, segment: SourceSegment) -> bool:
        """Add a segment's keys to the map; return whether the map takes more."""

        def step(chunk: bytes, position: int, next_offset: int, _ends: bool) -> Walk:
            return self._map.map_batches(
                chunk,
                position,
                next_offset,
                segment.end_offset,
                from_offset=self._job.first_dirty_offset,
                to_offset=self._limit_offset,
                stop_attributes=self._stop_attributes(),
            )

        return walk_segment(self._open(segment), segment, self._throttle, step, self._map_batch)

    def _map_batch(self, at: StoppedAt) -> Then:
        if at.stop in (Stop.FULL, Stop.DONE):
            return Then.END
        if at.stop is Stop.TRANSACTIONAL:
            if self._known_transactions is None:
                self._transactions()
                return Then.AGAIN  # the limit may have changed
            # The keys of markers are no keys of records: many a topic has these as keys, the integers 0 and 1.
            if at.header.is_control or at.header.last_offset in self._known_transactions.aborted:
                self._map.mapped_end = at.header.next_offset
                return Then.NEXT
        try:
            found = self._map.map_records(at.payload(), at.fields, self._job.first_dirty_offset, self._limit_offset)
        except BadRecord:
            raise CompactionError(f"the batch at offset {at.header.base_offset} holds a malformed record") from None
        return Then.NEXT if found is Stop.MORE else Then.END

    # Transactions

    def _stop_attributes(self) -> int:
        """Return which batches the kernel must not map by itself: those that may belong to an aborted transaction."""
        if self._known_transactions is None:
            return TRANSACTIONAL_FLAG | CONTROL_FLAG
        return TRANSACTIONAL_FLAG if self._known_transactions.aborted else 0

    def _transactions(self) -> Transactions:
        """Return the log's transactions, read once, when the first transactional batch is met."""
        if self._known_transactions is None:
            self._known_transactions = Transactions()
            for group in self._job.groups:
                for segment in group:
                    for header, batch in self._transactional(segment):
                        self._known_transactions.add(header, batch)
            self._limit_offset = min(self._limit_offset, self._known_transactions.open_offset)
            if self._limit_offset < self._map.mapped_end:
                # Keys mapped before cannot be removed from the map: no transaction below may be open any more.
                raise CompactionError(f"{self._job.directory}: a transaction is open at {self._limit_offset}")
        return self._known_transactions

    def _transactional(self, segment: SourceSegment) -> Iterator[tuple[BatchHeader, bytes]]:
        file = self._open(segment)
        try:
            for position, header in scan(file, 0, segment.size_bytes, segment.base_offset):
                if header.is_control or header.is_transactional:
                    yield header, file.read(position, header.size_bytes if header.is_control else HEADER_BYTES)
        except DamagedBatch as damage:
            raise CompactionError(f"{file.path}: {damage}") from None


def _map_bytes(job: CompactionJob) -> int:
    """Return the size of a map with a slot per offset of the dirty part, within the bound."""
    keys = max(job.end_offset - job.first_dirty_offset, MAP_KEYS_MIN)
    slots = keys * 100 // LOAD_PERCENT_MAX + 2
    return max(min(slots * SLOT_BYTES, job.map_bytes_max), (MAP_KEYS_MIN * 2) * SLOT_BYTES)
