"""Plans a truncation: what remains of a log when its end, or all of it, is dropped; worked out before anything changes.

The cut lies between two batches: the one that contains the given offset is dropped too. The rest of its segment is
indexed anew, and producer states up to there are rebuilt; both read much of the log, so `FoundCut.work_out` runs in a
thread. `find_cut` runs on the event loop, which owns the segments. A `Cut` is valid as long as the log's end does not
move.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from flowstone.log.partition.derived_state import read_producers
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.partition_directory import LogPosition
from flowstone.log.segments.segment import Segment
from flowstone.ports.files import File, Files

if TYPE_CHECKING:
    from flowstone.log.partition.partition_log import PartitionLog


class Cut(NamedTuple):
    log_end: LogPosition  # the plan is valid only while the log ends here
    end: LogPosition  # where the log will end
    # What lies below stays unchanged throughout the truncation.
    untouched_end: LogPosition
    # The segment that is cut, and what is left of it. None: nothing is left, the log begins again at its new end.
    shortened: tuple[Segment, Segment] | None
    producers: ProducerStates


class FoundCut(NamedTuple):
    files: Files
    log_end: LogPosition
    log_start_offset: int
    segments: Sequence[Segment]  # up to the one that is cut
    file: File
    position: int
    producers_from: int
    now_ms: int

    def work_out(self) -> Cut:
        """Prepare the cut, waiting for the disk. Raises StorageFault if the log is damaged."""
        segment = self.segments[-1]
        left = segment.shortened(self.file, self.position)
        if left.next_offset < self.log_start_offset:
            return _all(self.log_end, self.segments[0], self.log_start_offset)
        end = LogPosition(left.next_offset, left.base_offset, left.size_bytes)
        sizes = {each.base_offset: each.size_bytes for each in (*self.segments[:-1], left)}
        producers = read_producers(self.files, segment.directory, sizes, self.producers_from, end.offset, self.now_ms)
        return Cut(self.log_end, end, end, (segment, left), producers)


def find_cut(log: PartitionLog, offset: int, now_ms: int) -> FoundCut:
    """Return where the log must be cut so that nothing from `offset` on is left. Raises NotCached."""
    assert log.log_start_offset <= offset < log.end.offset
    segment, position, _batch_bytes = log.segments.locate(offset)
    segments = log.segments[: log.segments.at(segment.base_offset) + 1]
    file = segment.log.get()
    return FoundCut(log.files, log.end, log.log_start_offset, segments, file, position, log.producers_from, now_ms)


def cut_at(log: PartitionLog, offset: int, now_ms: int) -> Cut:
    """Plan and prepare a cut at once, waiting for the disk: for tools."""
    return wait_for(partial(find_cut, log, offset, now_ms)).work_out()


def cut_all(log: PartitionLog, offset: int) -> Cut:
    """Return a cut that leaves nothing: the log continues at `offset`."""
    return _all(log.end, log.segments[0], offset)


def _all(log_end: LogPosition, first: Segment, offset: int) -> Cut:
    untouched_end = min(first.base_offset, offset)
    return Cut(
        log_end,
        LogPosition(offset, offset, 0),
        LogPosition(untouched_end, untouched_end, 0),
        None,
        ProducerStates(),
    )
