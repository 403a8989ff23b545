"""The broker's side of the compaction process: started when first needed, called from a thread that waits for answers.

Compaction runs Python and native code for minutes: in a thread of the broker it would fight the event loop for the
interpreter. For files that only this process has, in simulations, there is `local_compactor`.
"""

from __future__ import annotations

from typing import Any, Protocol

from flowstone.log.segments.compaction_job import CleanedSegment, CompactionError, CompactionJob
from flowstone.log.workers.process import WorkerProcess
from flowstone.ports.files import Files
from flowstone.ports.system_files import SystemFiles

_WORKER = "flowstone.log.compaction.cleaner_worker"


class Compactor(Protocol):
    """Compacts one log at a time. If a method raises OSError or CompactionError, the log is unchanged."""

    async def begin(self, job: CompactionJob) -> int:
        """Build the offset map and return the offset where it ends."""
        ...

    async def clean(self, number: int) -> CleanedSegment:
        """Write the new segment of a group, given by its number."""
        ...

    async def end(self) -> None:
        """End the job and free its memory."""
        ...

    def stop(self) -> None: ...


def compactor_for(files: Files) -> Compactor:
    if isinstance(files, SystemFiles):
        return CompactorProcess()
    from flowstone.log.compaction.local_compactor import (
        LocalCompactor,  # imported here only: a real broker does not need it, and starts sooner without it
    )

    return LocalCompactor(files)


class CompactorProcess:
    def __init__(self) -> None:
        self._process = WorkerProcess(_WORKER, "log-cleaner")

    @property
    def pid(self) -> int | None:
        """Return the process id, or None before the process is first needed."""
        return self._process.pid

    async def begin(self, job: CompactionJob) -> int:
        mapped_end: int = (await self._ask({"job": job.to_json()}))["mapped_end"]
        return mapped_end

    async def clean(self, number: int) -> CleanedSegment:
        return CleanedSegment(*(await self._ask({"clean": number}))["cleaned"])

    async def end(self) -> None:
        await self._ask({})

    def stop(self) -> None:
        """End the process at once; the next start removes what it has written so far."""
        self._process.stop()

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = await self._process.ask(request)
        if "damage" in answer:
            raise CompactionError(answer["damage"])
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer
