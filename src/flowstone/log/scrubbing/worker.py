"""The process that scrubs: `python -m flowstone.log.scrubbing.worker`. One segment at a time.

A request `{"segment": …, "bytes_per_s": …}` is answered with `{"damage": … or null}`, or with the error of the disk.
Bytes that are read are evicted from the page cache unless they were there before: readers need the space more.
"""

from __future__ import annotations

import os
from typing import Any

from flowstone.log.scrubbing.check import SegmentToCheck, check_segment
from flowstone.log.workers.loop import serve
from flowstone.log.workers.throttle import Throttle
from flowstone.ports.system_files import SystemFile, SystemFiles


class PassingFile(SystemFile):
    """A file that is read at a limited rate and leaves the page cache as it was."""

    __slots__ = ("_throttle",)

    def __init__(self, file: SystemFile, throttle: Throttle) -> None:
        super().__init__(file.path, os.dup(file.fileno()))
        self._throttle = throttle
        self._advise(0, 0, "POSIX_FADV_RANDOM")  # no read-ahead: bytes read ahead would seem to have been cached before

    def read(self, position: int, count: int) -> bytes:
        was_cached = self.is_cached(position, count)
        data = super().read(position, count)
        if not was_cached:
            self._advise(position, len(data), "POSIX_FADV_DONTNEED")
        self._throttle.spend(len(data))
        return data

    def _advise(self, position: int, count: int, advice: str) -> None:
        if hasattr(os, "posix_fadvise"):  # not on macOS
            os.posix_fadvise(self.fileno(), position, count, getattr(os, advice))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    segment, throttle = SegmentToCheck(*request["segment"]), Throttle(request["bytes_per_s"])
    try:
        files = SystemFiles()
        return {"damage": check_segment(PassingFile(files.open(segment.path), throttle), segment, files)}
    except OSError as error:
        return {"errno": error.errno or 0, "error": str(error)}


if __name__ == "__main__":
    serve(answer)
