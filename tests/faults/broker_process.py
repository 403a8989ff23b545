"""A broker as its users run it: `flowstone up` in a process of its own, to be killed, paused, traced and restarted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

SOURCE = Path(__file__).parents[2] / "src"
READY_TIMEOUT_S = 20
EXIT_TIMEOUT_S = 20
POLL_S = 0.001
STOPPED_STATES = "TtDZX"
HOST = "127.0.0.1"
UP = (sys.executable, "-m", "flowstone.cli", "up")
# Several segments from little data; recovery points that move between two kills.
SMALL_SETTINGS: Mapping[str, str] = {
    "segment.bytes": str(1 << 20),
    "log.flush.offset.checkpoint.interval.ms": "150",
    "index.interval.bytes": "4096",
    "http.listener": "off",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class BrokerDied(Exception):
    """The process ended before it said that it serves."""


class BrokerProcess:
    """Starts at once; `wait_ready` or the `with` block waits until it serves. `output` is all it has said so far."""

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        program: Sequence[str] = UP,
        tracer: Sequence[str] = (),
    ) -> None:
        values = {**SMALL_SETTINGS, **(settings or {})}
        flags = [flag for name, value in values.items() for flag in ("--set", f"{name}={value}")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOWSTONE_")}
        self._process = subprocess.Popen(
            [*tracer, *program, "--data", str(data), "--listen", f"{HOST}:{port}", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment, "PYTHONPATH": str(SOURCE)},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.bootstrap = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self.wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self) -> Self:
        """BrokerDied if it ends instead."""
        if not self._ready.wait(READY_TIMEOUT_S) or not self.bootstrap:
            self.kill()
            raise BrokerDied(self.output)
        return self

    def wait_for(self, timeout_s: float) -> None:
        """Lets it go on for that long, unless it ends before."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def wait_exit(self) -> int:
        status = self._process.wait(EXIT_TIMEOUT_S)
        self._reader.join(EXIT_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def kill(self) -> None:
        """SIGKILL to the process and, if it is traced, to its tracer; returns when both are gone."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait_exit()

    def pause(self) -> None:
        """SIGSTOP; returns when no thread runs any more (one that waits for the disk stops when it comes back)."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        while self.is_running and not self._thread_states() <= set(STOPPED_STATES):
            time.sleep(POLL_S)

    def _thread_states(self) -> set[str]:
        """As /proc has them: the letter after the name in parentheses."""
        states = set()
        for stat in Path(f"/proc/{self._process.pid}/task").glob("*/stat"):
            with suppress(OSError):  # a thread may end meanwhile
                states.add(stat.read_text().rpartition(") ")[2][0])
        return states

    def terminate(self) -> int:
        """Stops it cleanly; the exit status."""
        os.killpg(self._process.pid, signal.SIGTERM)
        return self.wait_exit()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if line.startswith("ready "):
                self.bootstrap = line.split()[1]
                self._ready.set()
        self._ready.set()
