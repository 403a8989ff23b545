"""What of a log stays when its end is dropped, or all of it: worked out before anything changes.

The cut lies between two batches: the one that holds the given offset goes too. What is left of its segment is indexed
anew, and what producers did up to there is found again; both read much of the log, so that `FoundCut.work_out` is for a
thread. `find_cut` is for the event loop, to which the segments belong. A `Cut` is good as long as the log ends where it
did.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from flowstone.log.partition.derived_state import read_producers
from flowstone.log.partition.producer_state import ProducerStates
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.partition_directory import LogPosition
from flowstone.log.segments.segment import Segment
from flowstone.ports.files import File, Files

if TYPE_CHECKING:
    from flowstone.log.partition.partition_log import PartitionLog


class Cut(NamedTuple):
    log_end: LogPosition  # where the log must still end for this to be good
    end: LogPosition  # where it will end
    # What lies below is whole at every moment of the cutting.
    untouched_end: LogPosition
    # The segment that is cut, and what is left of it. None: nothing is, the log begins again at its new end.
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
        """Waits for the disk. StorageFault if the log is damaged."""
        segment = self.segments[-1]
        left = segment.shortened(self.file, self.position)
        if left.next_offset < self.log_start_offset:
            return _all(self.log_end, self.segments[0], self.log_start_offset)
        end = LogPosition(left.next_offset, left.base_offset, left.size_bytes)
        sizes = {each.base_offset: each.size_bytes for each in (*self.segments[:-1], left)}
        producers = read_producers(self.files, segment.directory, sizes, self.producers_from, end.offset, self.now_ms)
        return Cut(self.log_end, end, end, (segment, left), producers)


def find_cut(log: PartitionLog, offset: int, now_ms: int) -> FoundCut:
    """Where the log must be cut so that nothing from `offset` on is left. NotCached."""
    assert log.log_start_offset <= offset < log.end.offset
    segment, position, _batch_bytes = log.segments.locate(offset)
    segments = log.segments[: log.segments.at(segment.base_offset) + 1]
    file = segment.log.get()
    return FoundCut(log.files, log.end, log.log_start_offset, segments, file, position, log.producers_from, now_ms)


def cut_at(log: PartitionLog, offset: int, now_ms: int) -> Cut:
    """Both steps at once, waiting for the disk: for tools."""
    return wait_for(partial(find_cut, log, offset, now_ms)).work_out()


def cut_all(log: PartitionLog, offset: int) -> Cut:
    """Nothing is left: the log goes on at `offset`."""
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
