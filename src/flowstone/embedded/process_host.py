"""A broker in a separate process, to which signals can be sent without affecting this one.

The process runs `child` in its own session, so Ctrl-C in the terminal reaches only the embedding program. It ends when
that program ends, for whatever reason. Records are read over the wire with an ordinary client.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import flowstone
from flowstone.config import parse_broker_config
from flowstone.embedded.host import NotServing, Record
from flowstone.embedded.wire_reader import WireReader
from flowstone.errors import StartupError

# In addition to the broker's own shutdown.timeout.ms, for flushing and closing.
STOP_TIMEOUT_S = 30
_PACKAGE_ROOT = str(Path(flowstone.__file__).parents[1])


class ProcessHost:
    def __init__(self, values: Mapping[str, str], bootstrap: str, security: Mapping[str, Any]) -> None:
        self._values, self._reader = values, WireReader(bootstrap, security)
        self._process: subprocess.Popen[str] | None = None
        self._is_paused = False
        self.http_address: str | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        assert self._process is None
        parse_broker_config(self._values)  # raises ConfigError in this process; from the child it would be text
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flowstone.embedded.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": _python_path()},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has already ended, which is detected below
            self._process.stdin.write(json.dumps(dict(self._values)) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "the broker's process ended before it was ready"}
        if "error" in answer:
            self._wait()
            raise StartupError(answer["error"])
        self.http_address = answer["http_address"]

    def stop(self) -> None:
        if self._process is not None:
            self.resume()
            self._process.terminate()
            self._wait()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._wait()

    def pause(self) -> None:
        self._running().send_signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)
        self._is_paused = False

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._check_serving()
        self._reader.create_topic(name, partitions, configs)

    def records(self, topic: str, *, read_committed: bool) -> list[Record]:
        self._check_serving()
        return self._reader.records(topic, read_committed=read_committed)

    def wait_for(self, topic: str, count: int, timeout: float, *, read_committed: bool) -> list[Record]:
        self._check_serving()
        return self._reader.wait_for(topic, count, timeout, read_committed=read_committed)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise NotServing("the broker is not running")
        return self._process

    def _check_serving(self) -> None:
        self._running()
        if self._is_paused:
            raise NotServing("the broker is paused")

    def _wait(self) -> None:
        process = self._running()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        self._process, self._is_paused = None, False


def _python_path() -> str:
    """Return the PYTHONPATH with which the child imports the same package as this process."""
    return os.pathsep.join(filter(None, (_PACKAGE_ROOT, os.environ.get("PYTHONPATH"))))
