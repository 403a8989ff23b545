"""Compaction in the broker's own process, for files that no other process has: simulated ones."""

from __future__ import annotations

from flowstone.log.compaction.one_log import Compaction
from flowstone.log.segments.compaction_job import CleanedSegment, CompactionJob
from flowstone.log.workers.throttle import Throttle
from flowstone.ports.files import Files


class LocalCompactor:
    """A compactor in the broker's process. Ignores the rate limit: simulated time would stop in a wait."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._job: CompactionJob | None = None
        self._compaction: Compaction | None = None

    async def begin(self, job: CompactionJob) -> int:
        throttle = Throttle(job.bytes_per_s, wait=lambda _seconds: None)
        self._job, self._compaction = job, Compaction(self._files, job, throttle)
        return self._compaction.build_map()

    async def clean(self, number: int) -> CleanedSegment:
        assert self._job is not None
        assert self._compaction is not None
        return self._compaction.clean(self._job.groups[number])

    async def end(self) -> None:
        self._job = self._compaction = None

    def stop(self) -> None:
        pass
