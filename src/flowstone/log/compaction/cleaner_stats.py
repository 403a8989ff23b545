"""Statistics of a log directory's cleaner, for metrics and pages. Numbers only: nothing is decided from them."""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.counters import Histogram
from flowstone.log.segments.compaction_job import CleanedSegment, CompactionJob, SourceSegment

RUN_SECONDS_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)


class CleanerStats:
    def __init__(self) -> None:
        self.run_seconds = Histogram(RUN_SECONDS_BOUNDS)  # of completed runs, each of one log
        self.read_bytes = 0
        self.written_bytes = 0
        self.failed_runs = 0
        self.last_error_ms = 0  # 0: there was none
        self.last_look_ms = 0  # when logs that are due were last searched for
        self.dirty_ratio_max = 0.0  # of the logs seen in that search

    def mapped(self, job: CompactionJob, mapped_end: int) -> None:
        """Record that the dirty part was read up to `mapped_end`."""
        self.read_bytes += sum(
            source.size_bytes
            for group in job.groups
            for source in group
            if source.end_offset > job.first_dirty_offset and source.base_offset < mapped_end
        )

    def cleaned(self, group: Sequence[SourceSegment], cleaned: CleanedSegment) -> None:
        self.read_bytes += sum(source.size_bytes for source in group)
        self.written_bytes += cleaned.size_bytes

    def failed(self, now_ms: int) -> None:
        self.failed_runs += 1
        self.last_error_ms = now_ms
