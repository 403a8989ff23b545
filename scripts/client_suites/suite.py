"""Common parts of all suites: new broker processes, commands with a timeout, and the record of passed checks.

A check is a sentence; it passes, fails with a reason, or is skipped with one. A suite whose tool is missing raises
`Unavailable` and is skipped as a whole. This module knows no client.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.fetch_kafka import cache_folder

COMMAND_TIMEOUT_S = 60
FETCH_TIMEOUT_S = 300
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60  # a cluster's brokers hand over first
REASON_CHARACTERS_MAX = 300


class Unavailable(Exception):
    """The client is not available on this machine. The message is for users."""


class CheckFailed(Exception):
    """A client's behaviour differs from the expected one."""


@dataclass
class Suite:
    """The results of one client's checks."""

    name: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def check(self, sentence: str, work: Callable[[], object]) -> None:
        try:
            work()
        except (CheckFailed, subprocess.TimeoutExpired, OSError) as error:
            self.fail(sentence, str(error))
        else:
            self.passed += 1

    def fail(self, sentence: str, reason: str) -> None:
        self.failed.append(f"{sentence}: {' '.join(reason.split())[-REASON_CHARACTERS_MAX:]}")

    def skip(self, sentence: str, reason: str) -> None:
        self.skipped.append(f"{sentence}: {reason}")

    def take_report(self, output: str) -> None:
        """Add the results in lines of JSON, as our programs in other languages print them: check, and error or null."""
        for line in output.splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                self.fail("the program", line)
                continue
            if told["error"] is None:
                self.passed += 1
            else:
                self.fail(told["check"], told["error"])


@dataclass(frozen=True)
class Server:
    """A broker, or a cluster in which every partition has a replica on each broker."""

    address: str  # for a cluster, those of all its brokers, separated by commas
    data_directory: Path
    brokers: int = 1

    @property
    def log_directories(self) -> list[Path]:
        if self.brokers == 1:
            return [self.data_directory]
        return [self.data_directory / str(number + 1) for number in range(self.brokers)]


@contextmanager
def fresh_server(*settings: str, brokers: int = 1, config: Path | None = None) -> Iterator[Server]:
    """Start a broker, or several with a ZooKeeper, without data; stop them by process id and remove their data."""
    with tempfile.TemporaryDirectory(prefix="flowstone-clients-") as folder:
        data, log = Path(folder, "data"), Path(folder, "log")
        where = ["--listen", "127.0.0.1:0"] if config is None else ["--config", str(config)]
        command = [sys.executable, "-m", "flowstone.cli", "up", "--data", str(data), *where]
        if brokers > 1:
            command += ["--brokers", str(brokers), "--http", "off"]
        for setting in settings:
            command += ["--set", setting]
        with log.open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment())
        assert process.stdout is not None, "asked for with PIPE"
        overdue = threading.Timer(START_TIMEOUT_S, process.kill)
        overdue.start()
        try:
            address = next((line.split()[1] for line in process.stdout if line.startswith("ready ")), None)
            if address is None:
                raise SystemExit(f"the server did not start: {log.read_text()}")
            overdue.cancel()
            yield Server(address, data, brokers)
        finally:
            overdue.cancel()
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def environment() -> dict[str, str]:
    """Return this process's environment without settings that would affect the broker."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("FLOWSTONE_", "PYTEST"))}


def run(
    command: Sequence[str],
    *,
    input: str = "",
    folder: Path | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its standard output. Raises CheckFailed if it fails or times out."""
    done = subprocess.run(
        command,
        input=input,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=folder,
        env={**environment(), **(variables or {})},
    )
    if done.returncode:
        raise CheckFailed(f"exit {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def expect(text: str, *parts: str) -> None:
    for part in parts:
        if part not in text:
            raise CheckFailed(f"no {part!r} in {text!r}")


def tool(name: str, package: str | None = None) -> str:
    """Return the path of a tool, which root installs from a Debian package if it is missing."""
    found = shutil.which(name)
    if found is None and package is not None:
        install(package)
        found = shutil.which(name)
    if found is None:
        raise Unavailable(f"no {name} on the path" + (", and it could not be installed" if package else ""))
    return found


def install(package: str) -> None:
    """Try to install a Debian package, which only root on a Debian-like machine can."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(
            ["apt-get", "install", "-y", "-q", package],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, filled if it is missing. It is renamed when complete."""
    folder = cache_folder().parent / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder.parent) as work:
            filled = Path(work, "filled")
            filled.mkdir()
            try:
                fill(filled)
            except (CheckFailed, subprocess.TimeoutExpired) as error:
                raise Unavailable(f"{name} could not be fetched: {str(error)[-REASON_CHARACTERS_MAX:]}") from error
            filled.rename(folder)
    return folder
