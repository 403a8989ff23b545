"""Filter of the batches and records that compaction keeps: the kernel's filter, and the batches it leaves to Python.

A compressed batch that loses records is compressed again with its own codec; one that loses none keeps its bytes. The
records of an aborted transaction are removed. A transaction's marker is removed delete.retention.ms after its last
batch.
"""

from __future__ import annotations

from collections.abc import Callable

from flowstone.kernel.compaction import (
    CONTROL_FLAG,
    OUTPUT_PER_INPUT_MAX,
    TRANSACTIONAL_FLAG,
    BadRecord,
    FilteredRecords,
    OffsetMap,
    RecordFilter,
    Stop,
    Walk,
)
from flowstone.log.compaction.output import CleanedOutput
from flowstone.log.compaction.transactions import Transactions
from flowstone.log.compaction.walk import CHUNK_BYTES, StoppedAt, Then, walk_segment
from flowstone.log.segments.compaction_job import CompactionError, CompactionJob, SourceSegment
from flowstone.log.workers.throttle import Throttle
from flowstone.ports.files import File
from flowstone.types import Bytes
from flowstone.wire.compression import compress
from flowstone.wire.record_batch import CODEC_MASK, DELETE_HORIZON_FLAG, BatchHeader, encode_header

_NO_TIMESTAMP = -1


class GroupFilter:
    def __init__(
        self, offset_map: OffsetMap, job: CompactionJob, transactions: Callable[[], Transactions], throttle: Throttle
    ) -> None:
        """Create the filter. `transactions` is called when the first transactional batch is met."""
        self._job, self._transactions, self._throttle = job, transactions, throttle
        self._stop_attributes = TRANSACTIONAL_FLAG | CONTROL_FLAG
        self._kept_markers = frozenset(job.kept_markers)
        self.removed_markers: set[int] = set()  # the offsets of the removed markers
        sources = [segment for group in job.groups for segment in group]
        self._filter = RecordFilter(
            offset_map,
            now_ms=job.now_ms,
            delete_horizon_ms=job.delete_horizon_ms,
            kept_offsets=job.kept_offsets,
            output_bytes=OUTPUT_PER_INPUT_MAX * min(CHUNK_BYTES, max(each.size_bytes for each in sources)),
        )

    def clean(self, file: File, segment: SourceSegment, output: CleanedOutput, *, is_last: bool) -> None:
        """Write the batches of one segment that are kept. `is_last` marks the last segment of its group."""

        def step(chunk: bytes, position: int, next_offset: int, ends: bool) -> Walk:
            return self._filter.filter_batches(
                chunk,
                position,
                next_offset,
                segment.end_offset,
                keeps_last=ends and is_last,
                stop_attributes=self._stop_attributes,
            )

        def on_stop(at: StoppedAt) -> Then:
            if at.stop is not Stop.OUTPUT_FULL:
                self._put(self._decide(at, stays_empty=(at.ends_segment and is_last) or self._is_kept(at)), output)
                return Then.NEXT
            output.write(self._filter.take())
            self._filter.reserve(OUTPUT_PER_INPUT_MAX * at.header.size_bytes)
            return Then.AGAIN

        walk_segment(file, segment, self._throttle, step, on_stop)
        output.write(self._filter.take())

    def _is_kept(self, at: StoppedAt) -> bool:
        return self._filter.is_kept(at.header.last_offset)

    def _put(self, batch: Bytes, output: CleanedOutput) -> None:
        if self._filter.free_bytes < len(batch):
            output.write(self._filter.take())
            self._filter.reserve(len(batch))
        self._filter.put(batch)

    def _decide(self, at: StoppedAt, *, stays_empty: bool) -> Bytes:
        """Return the batch as it is to be written; empty if it is removed."""
        header = at.header
        if at.stop is Stop.TRANSACTIONAL and not self._transactions().aborted:
            self._stop_attributes = CONTROL_FLAG  # the rest is treated like any other batch
        filtered: FilteredRecords | None
        if header.is_control:
            filtered = self._filter_marker(at)
        elif header.is_transactional and header.last_offset in self._transactions().aborted:
            filtered = None
        else:
            filtered = self._filter_records(at)
        if filtered is not None and not filtered.changed and (header.record_count or stays_empty):
            return at.batch
        if filtered is not None and filtered.kept_count:
            return self._rewritten(header, filtered)
        return _emptied(header) if stays_empty else b""

    def _filter_records(self, at: StoppedAt, *, is_marker: bool = False) -> FilteredRecords:
        try:
            return self._filter.filter_records(at.payload(), at.fields, is_marker=is_marker)
        except BadRecord:
            raise CompactionError(f"the batch at offset {at.header.base_offset} holds a malformed record") from None

    def _filter_marker(self, at: StoppedAt) -> FilteredRecords | None:
        """Return a transaction marker as it is to be kept, or None if it is removed."""
        header = at.header
        is_kept = (header.producer_id, header.producer_epoch) in self._kept_markers
        if is_kept or header.base_offset not in self._transactions().finished_markers:
            return FilteredRecords(b"", header.record_count, header.max_timestamp, False, False)
        if not header.has_delete_horizon:
            return self._filter_records(at, is_marker=True)
        if self._job.now_ms < header.base_timestamp:
            return FilteredRecords(b"", header.record_count, header.max_timestamp, False, False)
        self.removed_markers.add(header.base_offset)
        return None

    def _rewritten(self, header: BatchHeader, filtered: FilteredRecords) -> bytes:
        if filtered.has_new_horizon:
            header = header._replace(
                attributes=header.attributes | DELETE_HORIZON_FLAG, base_timestamp=self._job.delete_horizon_ms
            )
        if not header.uses_log_append_time:
            header = header._replace(max_timestamp=filtered.max_timestamp)
        payload = compress(header.codec, filtered.payload)
        return encode_header(header._replace(record_count=filtered.kept_count), payload) + payload


def _emptied(header: BatchHeader) -> bytes:
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG)
    return encode_header(header._replace(attributes=attributes, base_timestamp=_NO_TIMESTAMP, record_count=0), b"")
