"""The process that compacts: `python -m flowstone.log.cleaner_worker`. One job at a time, line by line over its pipes.

A request is one line of JSON: `{"job": …}` begins a job and is answered with where its map ends, `{"clean": n}` writes
the n-th group anew, `{}` ends the job and frees its memory. The process ends when its input does, at once: a broker
that was killed must not have somebody write into its directories when it is started again.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from queue import SimpleQueue
from typing import Any

from flowstone.log.compaction import Compaction
from flowstone.log.compaction_job import CompactionError, CompactionJob
from flowstone.log.throttle import Throttle
from flowstone.ports.files import SystemFiles

# The broker's own work goes first.
NICENESS = 10


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


def main() -> None:
    os.nice(NICENESS)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    worker = Worker()
    while True:
        print(json.dumps(worker.answer(json.loads(lines.get()))), flush=True)


def _read_lines(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # whatever is being done is for nobody


if __name__ == "__main__":
    main()
