"""The command line as a user meets it: its two streams and its exit status, no terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import flowstone
from flowstone.cli.main import main
from flowstone.client.security import default_security, set_default_security
from tests.unit.cli.command_server import commands_in
from tests.unit.cli.terminal import Terminal

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., str]
Prepare = Callable[..., None]

SOURCE = Path(__file__).parents[3] / "src"
COMMAND_TIMEOUT_S = 60


def command_environment() -> dict[str, str]:
    """Of a user's shell, without what the tests' own run has set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWSTONE_", "PYTEST"))}
    return {**kept, "PYTHONPATH": str(SOURCE), "COLUMNS": "100"}


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with commands_in(tmp_path_factory.mktemp("commands"), command_environment()) as prefix:
        yield prefix


@pytest.fixture
def run_process(tmp_path: Path, commands: list[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command to its end as a process of its own, in an empty directory."""

    def run(*arguments: object, input: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*commands, *map(str, arguments)],
            input=input,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**command_environment(), **environment},
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    return run


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same without the price of a process: the entry point, its streams and its exit status."""

    def run(*arguments: object, input: str = "") -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["flowstone", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode())))
        capfd.readouterr()
        security = default_security()
        try:
            with pytest.raises(SystemExit) as end:
                main()
        finally:
            set_default_security(security)  # a command sets its own for its process, which goes on here
        output, errors = capfd.readouterr()
        assert isinstance(end.value.code, int)
        return subprocess.CompletedProcess(sys.argv, end.value.code, output, errors)

    return run


class Up:
    """A `flowstone up` that has said it is ready."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flowstone.cli", "up", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            env=command_environment(),
        )
        assert self.process.stdout is not None
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(("ready ", "{")):
                break

    @property
    def address(self) -> str:
        return self.lines[-1].removeprefix("ready ")

    def end(self, *signals: int) -> tuple[int, str]:
        """Sends the signals; the exit status and what was logged."""
        for number in signals:
            self.process.send_signal(number)
        _output, log = self.process.communicate(timeout=COMMAND_TIMEOUT_S)
        return self.process.returncode, log


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts brokers in an empty directory; those still running at the end are killed."""
    started: list[Up] = []

    def start(*arguments: str, http: str | None = "off") -> Up:
        """Without HTTP unless a test wants it, for all have the same default port. None leaves it to the command."""
        started.append(Up(tmp_path, *arguments, *(("--http", http) if http is not None else ())))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


@pytest.fixture
def spawn(tmp_path: Path, broker: flowstone.Broker) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a client command that does not end by itself; it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def spawn(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flowstone.cli", *arguments, "--bootstrap", broker.bootstrap]
        started.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env=command_environment(),
            )
        )
        return started[-1]

    yield spawn
    for each in started:
        each.kill()
        with each:  # closes its streams and waits for it
            pass


@pytest.fixture(scope="session")
def broker() -> Iterator[flowstone.Broker]:
    with flowstone.Broker() as broker:
        yield broker


@pytest.fixture
def call(run: Run, broker: flowstone.Broker) -> Call:
    """A command that must succeed; what it printed."""

    def call(*arguments: object, input: str = "") -> str:
        result = run(*arguments, "--bootstrap", broker.bootstrap, input=input)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    return call


@pytest.fixture
def refused(run: Run, broker: flowstone.Broker) -> Call:
    """A command that must fail; its one sentence."""

    def refused(*arguments: object, input: str = "") -> str:
        result = run(*arguments, "--bootstrap", broker.bootstrap, input=input)
        assert result.returncode == 1
        assert result.stderr.startswith("flowstone: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    return refused


@pytest.fixture
def prepare(broker: flowstone.Broker) -> Prepare:
    """Makes a topic, with records of these (key, value, timestamp) in it."""

    client = {"bootstrap.servers": broker.bootstrap, "log_level": 0}

    def prepare(topic: str, *records: tuple[str | None, str | bytes, int], partitions: int = 1) -> None:
        admin = AdminClient(client)
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
        if not records:
            return
        producer = Producer({**client, "partitioner": "murmur2_random", "linger.ms": 0})
        for key, value, timestamp_ms in records:
            producer.produce(topic, value, key, timestamp=timestamp_ms)
        assert producer.flush(10) == 0

    return prepare


@pytest.fixture
def terminal(tmp_path: Path, broker: flowstone.Broker) -> Iterator[Callable[..., Terminal]]:
    """Runs a command in a terminal, in an empty directory; `columns` is how wide it is."""
    opened: list[Terminal] = []
    environment = {**command_environment(), "FLOWSTONE_BOOTSTRAP": broker.bootstrap}

    def open_terminal(*arguments: str, columns: int = 100) -> Terminal:
        opened.append(Terminal(*arguments, columns=columns, directory=tmp_path, environment=environment))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()
