"""The broker's side of a worker process, called line by line over its pipes, for work that would block the event loop.

Started when first needed, asked from a thread that only waits, ended when the broker ends. A request and its answer are
one line of JSON each; what runs there is `loop` and what it is given.
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
from typing import Any

import flowstone

_PACKAGE_ROOT = str(Path(flowstone.__file__).parents[1])


class WorkerProcess:
    def __init__(self, module: str, name: str) -> None:
        """Create the handle. `module` is what the process runs; `name` is for the waiting thread and for messages."""
        self._module, self._name = module, name
        self._process: subprocess.Popen[str] | None = None
        self._thread = ThreadPoolExecutor(1, name)

    @property
    def pid(self) -> int | None:
        """Return the process id, or None before the process is first needed and after it has ended."""
        return self._process.pid if self._process is not None else None

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request. Raises ChildProcessError if the process ended; the next call starts one."""
        return await asyncio.wrap_future(self._thread.submit(self._exchange, json.dumps(request) + "\n"))

    async def rest(self) -> None:
        """End the process because it has nothing to do for a while and would only hold memory."""
        await asyncio.wrap_future(self._thread.submit(self._close))

    def stop(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown()
        self._close()

    def _exchange(self, line: str) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # the process has ended, as reading its answer shows below
            process.stdin.write(line)
            process.stdin.flush()
        answered = process.stdout.readline()
        if not answered:
            self._close()
            raise ChildProcessError(errno.ECHILD, f"the process of the {self._name} has ended")
        answer: dict[str, Any] = json.loads(answered)
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            python_path = os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                # Ctrl-C in a terminal is for the broker; the process group can be given a lower priority
                start_new_session=True,
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
