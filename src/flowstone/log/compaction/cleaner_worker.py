"""The process that compacts: `python -m flowstone.log.compaction.cleaner_worker`. One job at a time.

A request `{"job": …}` begins a job and is answered with where its map ends, `{"clean": n}` writes the n-th group anew,
`{}` ends the job and frees its memory.
"""

from __future__ import annotations

from typing import Any

from flowstone.log.compaction.one_log import Compaction
from flowstone.log.segments.compaction_job import CompactionError, CompactionJob
from flowstone.log.workers.loop import serve
from flowstone.log.workers.throttle import Throttle
from flowstone.ports.system_files import SystemFiles


class Worker:
    def __init__(self) -> None:
        self._job: CompactionJob | None = None
        self._compaction: Compaction | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._answer(request)
        except CompactionError as error:
            self._job = self._compaction = None
            return {"damage": str(error)}
        except OSError as error:
            self._job = self._compaction = None
            return {"errno": error.errno or 0, "error": str(error)}

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "job" in request:
            self._job = CompactionJob.from_json(request["job"])
            self._compaction = Compaction(SystemFiles(), self._job, Throttle(self._job.bytes_per_s))
            return {"mapped_end": self._compaction.build_map()}
        if "clean" in request:
            assert self._job is not None
            assert self._compaction is not None
            return {"cleaned": self._compaction.clean(self._job.groups[request["clean"]])}
        self._job = self._compaction = None
        return {}


if __name__ == "__main__":
    serve(Worker().answer)
