"""The process that compacts, as the broker sees it: started when first needed, asked from a thread that only waits.

Compaction runs Python and native code for minutes: in a thread of the broker it would fight the event loop for the
interpreter. For files that only this process has, in simulations, there is `local_compactor`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import flowstone
from flowstone.log.compaction_job import CleanedSegment, CompactionError, CompactionJob
from flowstone.ports.files import Files, SystemFiles

_PACKAGE_ROOT = str(Path(flowstone.__file__).parents[1])


class Compactor(Protocol):
    """Compacts one log at a time. OSError and CompactionError: the log is as it was."""

    async def begin(self, job: CompactionJob) -> int:
        """Builds the map; where it ends."""
        ...

    async def clean(self, number: int) -> CleanedSegment:
        """Writes that group's new segment."""
        ...

    async def end(self) -> None:
        """Lets go of the job's memory."""
        ...

    def stop(self) -> None: ...


def compactor_for(files: Files) -> Compactor:
    if isinstance(files, SystemFiles):
        return CompactorProcess()
    from flowstone.log.local_compactor import LocalCompactor  # a real broker does not need it, and starts sooner

    return LocalCompactor(files)


class CompactorProcess:
    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._thread = ThreadPoolExecutor(1, "log-cleaner")

    @property
    def pid(self) -> int | None:
        """None before it is first needed."""
        return self._process.pid if self._process is not None else None

    async def begin(self, job: CompactionJob) -> int:
        mapped_end: int = (await self._ask({"job": job.to_json()}))["mapped_end"]
        return mapped_end

    async def clean(self, number: int) -> CleanedSegment:
        return CleanedSegment(*(await self._ask({"clean": number}))["cleaned"])

    async def end(self) -> None:
        await self._ask({})

    def stop(self) -> None:
        """Ends the process, whatever it is doing: what it has written so far is removed by the next start."""
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown()
        self._close()

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = await asyncio.wrap_future(self._thread.submit(self._exchange, json.dumps(request) + "\n"))
        if "damage" in answer:
            raise CompactionError(answer["damage"])
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer

    def _exchange(self, line: str) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, which its silence tells below
            process.stdin.write(line)
            process.stdin.flush()
        answered = process.stdout.readline()
        if not answered:
            self._close()
            raise ChildProcessError(errno.ECHILD, "the process that compacts has ended")
        answer: dict[str, Any] = json.loads(answered)
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            python_path = os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "flowstone.log.cleaner_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C in a terminal is for the broker
                env={**os.environ, "PYTHONPATH": python_path},
            )
        return self._process

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with suppress(BrokenPipeError):
                    stream.close()
            process.kill()
            process.wait()
