"""Output that nobody takes: `head` that has had enough, a disk that is full. No command says more than it must."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

import flowstone
from flowstone.cli.common.errors import EXIT_CLOSED_PIPE
from tests.unit.cli.conftest import COMMAND_TIMEOUT_S, Prepare, command_environment

RunInto = Callable[..., tuple[int, str]]

# One of each kind: typer's own output, single documents, tables, streams of records, files.
COMMANDS = [
    ("--help",),
    ("--version",),
    ("up", "--help"),
    ("topic", "create", "--help"),
    ("topic", "list"),
    ("topic", "list", "--json"),
    ("topic", "describe", "piped"),
    ("topic", "offsets", "piped"),
    ("consume", "piped"),
    ("consume", "piped", "--json"),
    ("produce", "piped"),
    ("cluster", "status"),
    ("completion", "bash"),
    ("__complete", "topic", ""),
    ("doctor",),
    ("log", "dump", "data/piped-0", "--records"),
    ("log", "dump", "data/piped-0", "--json"),
    ("log", "verify", "data"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory `data` in it, with more records than a pipe holds."""
    directory = tmp_path_factory.mktemp("piped")
    with flowstone.Broker(data=str(directory / "data")) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "log_level": 0})
        for number in range(5000):
            producer.produce("piped", f"value {number} " * 3, partition=0)
        assert producer.flush(10) == 0
    return directory


@pytest.fixture
def run_into(directory: Path, commands: list[str], broker: flowstone.Broker) -> RunInto:
    """Runs a command with a descriptor as its standard output; its exit status, and what it said on standard error."""

    def run(output: int, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [*commands, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            env={**command_environment(), "FLOWSTONE_BOOTSTRAP": broker.bootstrap},
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stderr

    return run


@pytest.fixture(scope="module")
def piped(broker: flowstone.Broker) -> None:
    broker.create_topic("piped")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    producer.produce("piped", "value")
    assert producer.flush(10) == 0


@pytest.mark.usefixtures("piped")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_closed_pipe_is_met_without_a_word(run_into: RunInto, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        status, errors = run_into(writing, *arguments)
    finally:
        os.close(writing)
    assert (status, errors) == (EXIT_CLOSED_PIPE, "")


@pytest.mark.usefixtures("piped")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_disk_behind_standard_output_is_told(run_into: RunInto, arguments: tuple[str, ...]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        status, errors = run_into(full, *arguments)
    finally:
        os.close(full)
    assert status == 1
    assert "cannot write to standard output: No space left on device" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--version",), ("topic", "list"), ("up", "--help")], ids=" ".join)
def test_the_output_of_a_command_without_standard_output_is_dropped(
    broker: flowstone.Broker, arguments: tuple[str, ...]
) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", sys.executable, "-m", "flowstone.cli", *arguments],
        env={**command_environment(), "FLOWSTONE_BOOTSTRAP": broker.bootstrap},
        stderr=subprocess.PIPE,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_dump_that_is_read_by_head_ends_quietly(directory: Path) -> None:
    command = f"{sys.executable} -m flowstone.cli log dump data/piped-0 --records"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 3; echo ${{PIPESTATUS[0]}}"],
        cwd=directory,
        env=command_environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=True,
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 4
    assert done.stdout.splitlines()[-1] == str(EXIT_CLOSED_PIPE)


def test_what_goes_wrong_is_still_told_when_nobody_reads_the_output(run_into: RunInto, prepare: Prepare) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    status, errors = run_into(writing, "topic", "describe", "nowhere-to-be-found")
    os.close(writing)
    assert status == 1
    assert errors.startswith("flowstone: there is no topic nowhere-to-be-found")
