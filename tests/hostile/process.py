"""A broker in a process of its own, and what can be seen of it from outside: memory, descriptors, log lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.wire_client import Client

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
LOG_TIMEOUT_S = 1.0
PAUSE_S = 0.01


class BrokerProcess:
    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        directory.mkdir(parents=True)
        self.data = directory / "data"
        self._stderr = directory / "stderr"
        self._stdout = directory / "stdout"
        command = [sys.executable, "-m", "flowstone.cli", "up", "--data", str(self.data)]
        command += ["--listen", "127.0.0.1:0", "--http", "off"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        self.address = self._wait_ready()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def connect(self, timeout_s: float = 10.0) -> Client:
        return Client(self.address, timeout_s)

    def log_lines(self) -> list[str]:
        return self._stderr.read_text(errors="replace").splitlines()

    def lines_about(self, text: str, since: int = 0) -> list[str]:
        """Log lines from number `since` on that hold `text`; waits a moment for the first, which may be on its way."""
        deadline = time.monotonic() + LOG_TIMEOUT_S
        while True:
            found = [line for line in self.log_lines()[since:] if text in line]
            if found or time.monotonic() > deadline:
                return found
            time.sleep(PAUSE_S)

    def faults(self) -> list[str]:
        """Lines that only a mistake in the broker can cause."""
        return [line for line in self.log_lines() if " ERROR " in line or "Traceback" in line or "CRITICAL" in line]

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

    def stop(self) -> None:
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name} in /proc/{self.pid}/status")

    def _wait_ready(self) -> tuple[str, int]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.is_running:
            for line in self._stdout.read_text().splitlines():
                if line.startswith("ready "):
                    host, _, port = line.removeprefix("ready ").rpartition(":")
                    return host, int(port)
            time.sleep(PAUSE_S)
        self._process.kill()
        self._process.wait()
        raise AssertionError(f"the broker did not start: {self.log_lines()}")
