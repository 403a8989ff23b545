"""Writes a large batch into its log in pieces, so that no step holds the event loop for long.

Copying a hundred megabytes into the page cache takes a tenth of a second. The records of a large batch are therefore
written beyond the end of the log before the batch is appended. The append then writes only the header, which makes them
part of the log. Other batches may be appended meanwhile: what was written is then cut off, and the append writes all.

Until the header is written, the log ends in zeros where it would be: recovery cuts off what follows (`torn_writes`).
The space counts as preallocated (`Segment.preallocated_end`), so that nothing else is written there, and so that a roll
and a clean stop release it.

Invariant: `Segment.ahead` is the one large append that has written beyond the segment's end. Whatever writes there, or
shortens the file, clears it: then the records are written again.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from flowstone.errors import ApiError, StorageFault
from flowstone.log.segments.preallocation import cut_to_size
from flowstone.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, parse_header

if TYPE_CHECKING:
    from flowstone.log.partition.partition_log import PartitionLog

# The bytes of one step, which takes about a millisecond. A batch up to this size is written at once.
PIECE_BYTES = 4 << 20


class WrittenAhead(NamedTuple):
    """The records of a batch that are being written beyond the end of a log, where its append will expect them."""

    log: PartitionLog
    segment: Segment
    position: int  # of the batch
    batch: Bytes

    def steps(self) -> Generator[None, None, None]:
        """Write the records; stop as soon as that is of no use. An error is left to the append, which meets it too."""
        view, segment = memoryview(self.batch), self.segment
        for start in range(HEADER_BYTES, len(view), PIECE_BYTES):
            if not self.is_next:
                return
            segment.log.pinned = True
            try:
                segment.log.get().write(self.position + start, [view[start : start + PIECE_BYTES]])
            except OSError:
                self.cut_off()
                return
            yield

    @property
    def is_next(self) -> bool:
        """Return whether the log still ends where the batch was meant to go, and nothing of it was cut off."""
        segment, log = self.segment, self.log
        return segment.ahead is self and segment is log.store.segments.active and not log.is_forgotten

    def take(self) -> bool:
        """Return whether only the header is missing; the caller writes it at once."""
        is_next = self.is_next
        if is_next:
            self.segment.ahead = None
        return is_next

    def cut_off(self) -> None:
        """Remove the bytes written beyond the end of the log, unless the batch was appended or they were removed
        before.
        """
        segment, is_next = self.segment, self.is_next
        if segment.ahead is self:
            segment.ahead = None
        if is_next:
            with suppress(OSError):  # recovery removes it
                cut_to_size(segment)
                if self.log.flushed_end == self.log.end:
                    segment.log.pinned = False  # no flush follows that would do it


def begin_large_append(log: PartitionLog, batch: Bytes, now_ms: int) -> WrittenAhead | None:
    """Return where to write a large batch ahead; None if it is small or refused, or if another one is being written."""
    if len(batch) <= PIECE_BYTES:
        return None
    header = parse_header(batch)
    try:
        log.prepare_active_segment(len(batch), header.last_offset_delta + log.end.offset, header.max_timestamp, now_ms)
    except (ApiError, StorageFault):  # the append meets it too, and reports it
        return None
    segment = log.store.segments.active
    end = segment.size_bytes + len(batch)
    if segment.ahead is not None or max(segment.preallocated_end, end) >= RELATIVE_OFFSET_MAX:
        return None
    log.durability.note_as_open()
    segment.preallocated_end = max(segment.preallocated_end, end)
    segment.ahead = written = WrittenAhead(log, segment, segment.size_bytes, batch)
    return written
