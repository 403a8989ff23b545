"""Writes a large batch into its log in pieces, so that no step holds the event loop for long.

Copying a hundred megabytes into the page cache takes a tenth of a second. The records of a large batch are therefore
written beyond the end of the log before the batch is appended. The append then writes only the header, which makes them
part of the log. Other batches may be appended meanwhile: what was written is then cut off, and the append writes all.

Until the header is written, the log ends in zeros where it would be: recovery cuts off what follows. The space counts
as preallocated (`Segment.preallocated_end`), so that nothing else is written there, and so that a roll and a clean stop
release it. Whatever shortens the file lowers that end: then the records are written again.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from flowstone.errors import ApiError, StorageFault
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
        segment.preallocated_end = max(segment.preallocated_end, self.position + len(view))
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
        return (
            segment is log.store.segments.active
            and segment.size_bytes == self.position
            and self.position + len(self.batch) <= segment.preallocated_end < RELATIVE_OFFSET_MAX
            and not log.is_forgotten
        )

    def cut_off(self) -> None:
        """Remove what was written beyond the end of the log, unless the batch was appended or a roll removed it."""
        segment, log = self.segment, self.log
        end = self.position + len(self.batch)
        if segment is log.store.segments.active and segment.size_bytes < end and not log.is_forgotten:
            with suppress(OSError):  # recovery removes it
                segment.log.get().truncate(segment.size_bytes)
                segment.preallocated_end = 0


def begin_large_append(log: PartitionLog, batch: Bytes, now_ms: int) -> WrittenAhead | None:
    """Return where to write a large batch ahead; None if the batch is small, or must be refused."""
    if len(batch) <= PIECE_BYTES:
        return None
    header = parse_header(batch)
    try:
        log.prepare_active_segment(len(batch), header.last_offset_delta + log.end.offset, header.max_timestamp, now_ms)
    except (ApiError, StorageFault):  # the append meets it too, and reports it
        return None
    segment = log.store.segments.active
    return WrittenAhead(log, segment, segment.size_bytes, batch)
