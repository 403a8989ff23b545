"""One partition's log: batches in, slices out, offsets in order.

Owns the end of the log and the next offset: a leader's, which gives them to the batches of clients, and a follower's,
which takes them over. How the log is stored is `stored_log`'s business, where records lie `segment_list`'s. It knows
nothing of replicas, requests or who waits. All calls come from the event loop. Reads never wait for the disk: see
`reading`.

Invariants: offsets are given without a gap, and only compaction makes one. A failed write leaves the log as it was; if
even that fails, the fault is for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition import timestamps
from flowstone.log.partition.record_checks import Timestamps
from flowstone.log.partition.replica_append import Replicated, UnfitRecords, check_batches
from flowstone.log.partition.rolling import must_roll
from flowstone.log.partition.stored_log import StoredLog
from flowstone.log.partition.validation import NeedsWorker, check_batch
from flowstone.log.segments.cached_reads import LogSlice, NotCached
from flowstone.log.segments.partition_directory import NO_DESCRIPTORS, FlushTask, LogPosition
from flowstone.log.segments.segment import Segment, newest_timestamp
from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, PREFIX_BYTES, BatchHeader, encode_header, parse_header, prefix

__all__ = [
    "Appended",
    "FlushTask",
    "LogPosition",
    "LogSlice",
    "NeedsWorker",
    "NotCached",
    "PartitionLog",
    "Replicated",
    "Timestamps",
    "UnfitRecords",
]

# As a named tuple's constructor makes it, which takes three times as long: two are made for every batch.
_new = tuple.__new__


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time_ms: int  # -1: the producer's timestamps were kept
    log_start_offset: int
    duplicate: bool  # this very batch was in the log already


class PartitionLog(StoredLog):
    __slots__ = ()

    # Appending

    def append(
        self, records: Bytes, *, leader_epoch: int, is_own: bool = False, opened: Timestamps | None = None
    ) -> Appended:
        """Append a client's batch. Raises ApiError if it is refused or there is no room; nothing is written then.

        A batch of our own, which a coordinator has just made, is taken as it is. `opened` is what a worker has found in
        a compressed batch; without it, NeedsWorker says of a large one that a worker must open it first.
        """
        now_ms, config = self._clock.time_ms(), self.config
        if is_own:
            header = stored = parse_header(records)
        else:
            header, stored = check_batch(records, config, now_ms, opened)
        append_time_ms = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
        is_idempotent = header.producer_id >= 0
        if is_idempotent and not is_own:
            repeated = self.producers.check(header, now_ms)
            if repeated is not None:
                return Appended(repeated.base_offset, repeated.last_offset, append_time_ms, self.log_start_offset, True)
        base_offset = self.end.offset
        last_offset = base_offset + header.last_offset_delta
        size_bytes, timestamp = len(records), stored.max_timestamp
        self._make_room(size_bytes, last_offset, timestamp, now_ms)
        buffers = _placed(records, header, stored, base_offset, leader_epoch)
        self._write(buffers, base_offset, size_bytes, last_offset, timestamp)
        if leader_epoch > self.epochs.latest and self.epochs.assign(leader_epoch, base_offset):
            self._directory.store_epochs(self.epochs.encode())
        if is_idempotent:
            self.producers.update(header, base_offset, now_ms)
        return _new(Appended, (base_offset, last_offset, append_time_ms, self.log_start_offset, False))

    def _write(self, buffers: list[Bytes], base_offset: int, size_bytes: int, last_offset: int, timestamp: int) -> None:
        segment = self._segments.active
        try:
            segment.append(buffers, base_offset, size_bytes, last_offset, timestamp)
        except OSError as error:
            raise self._undo(segment, error) from error
        self.end = _new(LogPosition, (segment.next_offset, segment.base_offset, segment.size_bytes))

    def append_replicated(self, records: Bytes, *, leader_epoch: int) -> Replicated:
        """Appends whole batches as the leader of this epoch has them; the last one may be cut short, and is left out.

        `UnfitRecords`: nothing was appended. Another ApiError: there was no room for all of them.
        """
        headers = check_batches(records, self.end.offset, self.epochs.latest, leader_epoch)
        before, now_ms = self.end.offset, self._clock.time_ms()
        view, position, run = memoryview(records), 0, list[BatchHeader]()
        run_bytes = 0
        for header in headers:
            if run and self._ends_run(header, run_bytes, now_ms):
                self._write_run(view[position : position + run_bytes], run, now_ms)
                position, run, run_bytes = position + run_bytes, [], 0
            if not run:
                self._make_room(header.size_bytes, header.last_offset, newest_timestamp(header), now_ms)
            run.append(header)
            run_bytes += header.size_bytes
        if run:
            self._write_run(view[position : position + run_bytes], run, now_ms)
            position += run_bytes
        return Replicated(before, self.end.offset, position)

    def _ends_run(self, header: BatchHeader, run_bytes: int, now_ms: int) -> bool:
        """Whether a batch must not be written together with those before it. A segment's first batch goes alone: what
        follows is measured by it."""
        active = self._segments.active
        return not active.size_bytes or must_roll(
            active,
            self.config,
            self._roll_ms,
            run_bytes + header.size_bytes,
            header.last_offset,
            newest_timestamp(header),
            now_ms,
        )

    def _make_room(self, size_bytes: int, last_offset: int, timestamp: int, now_ms: int) -> None:
        """The active segment is the one that a batch with these belongs into."""
        active = self._segments.active
        try:
            if not active.size_bytes:
                if not self._directory.exists:
                    self._create()
            elif must_roll(active, self.config, self._roll_ms, size_bytes, last_offset, timestamp, now_ms):
                self.roll()
        except OSError as error:
            raise self._file_error(error) from error

    def _write_run(self, data: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
        segment = self._segments.active
        next_offset = headers[-2].next_offset if len(headers) > 1 else self.end.offset
        try:
            segment.append_found(data, headers)
        except OSError as error:
            raise self._undo(segment, error) from error
        self.end = LogPosition(segment.next_offset, segment.base_offset, segment.size_bytes)
        self.ends_after_hole = headers[-1].base_offset > next_offset
        for header in headers:
            epoch = header.partition_leader_epoch
            if epoch > self.epochs.latest and self.epochs.assign(epoch, header.base_offset):
                self._directory.store_epochs(self.epochs.encode())
            if header.producer_id >= 0 and not header.is_control:
                self.producers.update(header, header.base_offset, now_ms)

    def mark_hole(self) -> None:
        """The hole before the last batch must be believed after a crash: the log is about to be in sync.

        While much is still to come nobody relies on the last batch, and this would be for nothing.
        """
        try:
            self._directory.mark_hole(self.end.offset)
        except OSError as error:
            raise self._file_error(error) from error

    def _undo(self, segment: Segment, error: OSError) -> ApiError | StorageFault:
        """Part of a batch may be in the file: without it, the log is as if nothing had been tried."""
        if error.errno in NO_DESCRIPTORS:  # it was not even opened
            return self._file_error(error)
        try:
            segment.log.get().truncate(segment.size_bytes)
            segment.room_end = 0
        except OSError as second:
            self.is_torn = True
            return StorageFault(f"{self.topic_partition}: {error}, and undoing it: {second}")
        return self._file_error(error)

    # Reading

    def read(self, offset: int, max_bytes: int, until: LogPosition, *, at_least_one: bool) -> LogSlice | None:
        """Bytes of one segment from the batch that holds `offset` on, or the first one after it, up to `until`.

        None if there are none, or if the first batch is above `max_bytes` and not asked for all the same.
        """
        if not self.log_start_offset <= offset <= self.end.offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} has {self.log_start_offset} to {self.end.offset}, not {offset}",
            )
        if offset >= until.offset:
            return None
        try:
            segment, position, batch_bytes = self._segments.locate(offset)
            if batch_bytes > max_bytes:
                if not at_least_one:
                    return None
                max_bytes = batch_bytes
            file = segment.log.get()
        except OSError as error:
            raise self._file_error(error) from error
        end = segment.size_bytes
        if segment.base_offset == until.segment_base_offset:
            end = min(end, until.position)  # the segment may have been compacted since
        return LogSlice(file, position, min(max_bytes, end - position))

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the end of what read_committed consumers may see, given the high watermark."""
        return high_watermark

    def position_of(self, offset: int) -> LogPosition:
        """Where the batch that holds `offset`, or the first one after it, begins; NotCached."""
        assert self.log_start_offset <= offset <= self.end.offset
        if offset == self.end.offset:
            return self.end
        segment, position, _batch_bytes = self._segments.locate(offset)
        return LogPosition(offset, segment.base_offset, position)

    def find_timestamp(self, target_ms: int) -> LogSlice | None:
        """The batch with the first record at or after `target_ms`: see `timestamps.first_record_at`. NotCached."""
        segments = self._segments.from_offset(self.log_start_offset)
        return timestamps.find_batch(segments, target_ms, self.log_start_offset)

    def max_timestamp(self) -> tuple[int, LogSlice] | None:
        """The newest timestamp, and the first batch that has it; None for an empty log. NotCached."""
        return timestamps.newest_batch(self._segments.from_offset(self.log_start_offset))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.end.offset)


def _placed(
    records: Bytes, header: BatchHeader, stored: BatchHeader, base_offset: int, leader_epoch: int
) -> list[Bytes]:
    """The batch's bytes at their place in the log; all but the first few are the client's."""
    if stored is header:
        return [prefix(base_offset, header.batch_length, leader_epoch), memoryview(records)[PREFIX_BYTES:]]
    payload = memoryview(records)[HEADER_BYTES:]
    placed = stored._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
    return [encode_header(placed, payload), payload]
