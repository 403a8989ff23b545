"""The demo's `flowstone pipeline` commands: a run that is killed and stopped, and commands that end by themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 90
COMMAND_TIMEOUT_S = 180
LINES_SHOWN = 20


class Driver:
    """A `flowstone pipeline run` in a process group of its own, with Spark's processes."""

    def __init__(self, directory: Path, address: str) -> None:
        begun = time.perf_counter()
        self._process = _start("run", directory, address)
        self._lines: list[str] = []
        self._is_running = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        try:
            if not self._is_running.wait(START_TIMEOUT_S):
                raise SystemExit(f"demo: the pipeline did not start in {START_TIMEOUT_S} s:\n{self.told()}")
            self.check()
        except BaseException:
            self.kill()
            raise
        self.ready_s = time.perf_counter() - begun

    def check(self) -> None:
        """Raise SystemExit if the run has ended by itself."""
        if self._process.poll() is not None:
            raise SystemExit(f"demo: the pipeline ended with {self._process.returncode}:\n{self.told()}")

    def told(self) -> str:
        """Return what the run printed last."""
        return "".join(self._lines[-LINES_SHOWN:])

    def kill(self) -> None:
        _kill(self._process)
        self._thread.join(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """Stop the run with SIGTERM, and return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"demo: the pipeline did not stop in {STOP_TIMEOUT_S} s:\n{self.told()}") from None
        finally:
            self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.append(line)
                if line.startswith("running:"):
                    self._is_running.set()
        self._process.wait()
        self._is_running.set()


class Command:
    """A command of `flowstone pipeline` with --json that runs beside the demo and ends by itself."""

    def __init__(self, command: str, directory: Path, address: str, *options: str) -> None:
        self._name = command
        self._process = _start(command, directory, address, *options, "--json", stderr=subprocess.PIPE)

    def documents(self) -> list[Any]:
        """Wait until it has ended, and return the documents that it printed."""
        try:
            output, errors = self._process.communicate(timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"demo: pipeline {self._name} did not end in {COMMAND_TIMEOUT_S} s") from None
        finally:
            self.kill()
        if self._process.returncode:
            raise SystemExit(f"demo: pipeline {self._name} ended with {self._process.returncode}:\n{errors or output}")
        documents, rest = list[Any](), output.strip()
        while rest:
            document, end = json.JSONDecoder().raw_decode(rest)
            documents.append(document)
            rest = rest[end:].lstrip()
        return documents

    def kill(self) -> None:
        _kill(self._process)


def ask(command: str, directory: Path, address: str, *options: str) -> list[Any]:
    """Run a command of `flowstone pipeline` with --json to its end, and return the documents that it prints."""
    return Command(command, directory, address, *options).documents()


def _start(
    command: str, directory: Path, address: str, *options: str, stderr: int = subprocess.STDOUT
) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "flowstone.cli", "pipeline", *command.split()]
    return subprocess.Popen(
        [*program, str(directory), "--bootstrap", address, *options],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
        # Beside the pipeline: Spark's own files stay when it is killed.
        env={**os.environ, "SPARK_LOCAL_DIRS": str(directory.with_name("spark"))},
    )


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a command with all processes that it started, which may outlive it."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
