"""`flowstone up` in a process of its own, as its users run it: to be asked, killed, paused, traced and watched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.ports import HOST
from tests.support.wire_client import Client

SOURCE = Path(__file__).parents[2] / "src"
READY_TIMEOUT_S = 60  # a busy machine recovers forty partitions in half of that
EXIT_TIMEOUT_S = 60
LINE_TIMEOUT_S = 10.0
POLL_S = 0.001
STOPPED_STATES = "TtDZX"
UP = (sys.executable, "-m", "flowstone.cli", "up")


class BrokerDied(Exception):
    """The process ended before it said that it serves."""


class BrokerProcess:
    """Starts at once; `wait_ready` or the `with` block waits until it serves. `output` is all it has said so far."""

    def __init__(
        self,
        data: Path,
        *,
        host: str = HOST,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        program: Sequence[str] = UP,
        tracer: Sequence[str] = (),
    ) -> None:
        self.data = data
        values = {"http.listener": "off", **(settings or {})}
        flags = [flag for name, value in values.items() for flag in ("--set", f"{name}={value}")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOWSTONE_")}
        self._process = subprocess.Popen(
            [*tracer, *program, "--data", str(data), "--listen", f"{host}:{port}", *flags],
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
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    def connect(self, timeout_s: float = 10.0) -> Client:
        return Client(self.address, timeout_s)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self) -> Self:
        """Wait until the broker serves. Raises BrokerDied if it ends instead, or does not within READY_TIMEOUT_S."""
        if not self._ready.wait(READY_TIMEOUT_S):
            self.kill()
            raise BrokerDied(f"not ready within {READY_TIMEOUT_S} s:\n{self.output}")
        if not self.bootstrap:
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

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def _thread_states(self) -> set[str]:
        """As /proc has them: the letter after the name in parentheses."""
        states = set()
        for stat in Path(f"/proc/{self._process.pid}/task").glob("*/stat"):
            with suppress(OSError):  # a thread may end meanwhile
                states.add(stat.read_text().rpartition(") ")[2][0])
        return states

    def terminate(self) -> int:
        """Stops it cleanly; the exit status. TimeoutExpired if that takes too long; then it is killed."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            return self.wait_exit()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    # What it has said

    def lines_about(self, text: str, since: int = 0) -> list[str]:
        """Lines from number `since` on that hold `text`; waits a moment for the first, which may be on its way."""
        deadline = time.monotonic() + LINE_TIMEOUT_S
        while True:
            found = [line for line in self.lines[since:] if text in line]
            if found or time.monotonic() > deadline:
                return found
            time.sleep(POLL_S)

    def faults(self) -> list[str]:
        """Lines that only a mistake in the broker can cause."""
        return [line for line in self.lines if " ERROR " in line or "Traceback" in line or "CRITICAL" in line]

    # What it takes

    def rss_bytes(self) -> int:
        return self._status("VmRSS:")

    def forget_peak(self) -> None:
        """From here on `peak_bytes` counts anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        return self._status("VmHWM:")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name} in /proc/{self.pid}/status")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if line.startswith("ready "):
                self.bootstrap = line.split()[1]
                self._ready.set()
        self._ready.set()
