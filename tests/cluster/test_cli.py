"""A cluster as its operator meets it: commands, processes, a real ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.embedded.zookeeper_server import ZooKeeperServer
from tests.unit.cli.command_server import commands_in

SOURCE = Path(__file__).parents[2] / "src"
TIMEOUT_S = 60
POLL_S = 0.1


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWSTONE_", "PYTEST"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(SOURCE))))}


class Shell:
    """Commands in one directory, and the brokers that were started there."""

    def __init__(self, directory: Path, commands: list[str]) -> None:
        self.directory, self._commands = directory, commands
        self.bootstrap = ""
        self.started: list[subprocess.Popen[str]] = []
        self._log = (directory / "log").open("a")

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self._log.close()

    def up(self, *arguments: str) -> dict[str, Any]:
        """Starts it; what it announces."""
        process = subprocess.Popen(
            [sys.executable, "-m", "flowstone.cli", "up", "--http", "off", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=self.directory,
            env=environment(),
        )
        self.started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self.log()
        announced: dict[str, Any] = json.loads(line)
        self.bootstrap = self.bootstrap or announced["ready"]
        return announced

    def run(self, *arguments: str, input: str = "", fails: bool = False) -> str:
        """What a command printed; its one sentence if it is to fail."""
        result = subprocess.run(
            [*self._commands, *arguments],
            input=input,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env={**environment(), "FLOWSTONE_BOOTSTRAP": self.bootstrap},
            timeout=TIMEOUT_S,
            check=False,
        )
        assert result.returncode == int(fails), result.stderr
        return result.stderr if fails else result.stdout

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run("cluster", "status", "--json"))
        return document

    def wait_until(self, **wanted: int) -> None:
        """Until the status has these values."""
        deadline = time.monotonic() + TIMEOUT_S
        while any((status := self.status())[name] != value for name, value in wanted.items()):
            assert time.monotonic() < deadline, status
            time.sleep(POLL_S)

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def end(self, process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
        process.send_signal(number)
        return process.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Client commands that start in no time."""
    with commands_in(tmp_path_factory.mktemp("commands"), environment()) as prefix:
        yield prefix


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """For all tests that start brokers one by one; each has a path of its own in it."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def shell(tmp_path: Path, commands: list[str]) -> Iterator[Shell]:
    shell = Shell(tmp_path, commands)
    yield shell
    shell.close()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if is_alive(pid)]
        time.sleep(POLL_S)


def children(pid: int) -> list[int]:
    """Those of all its threads."""
    return [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]


def test_one_command_starts_a_cluster_that_survives_a_broker_and_keeps_its_records(shell: Shell) -> None:
    announced = shell.up("--brokers", "3", "--port", "0", "--data", "data")
    assert [each["node_id"] for each in announced["brokers"]] == [1, 2, 3]
    shell.run("topic", "create", "orders", "--partitions", "3")
    shell.run("produce", "orders", input="tea\ncoffee\n")
    os.kill(announced["brokers"][2]["pid"], signal.SIGKILL)
    shell.wait_until(under_replicated=3, offline=0)
    shell.run("produce", "orders", input="milk\n")
    assert sorted(shell.run("consume", "orders").split()) == ["coffee", "milk", "tea"]
    assert "broker 3 ended by SIGKILL; 2 are left; to start it again: flowstone up --node-id 3 " in shell.log()

    (cluster,) = shell.started
    processes = children(cluster.pid)
    assert shell.end(cluster) == 0
    wait_gone(processes)

    shell.bootstrap = ""
    shell.up("--brokers", "3", "--port", "0", "--data", "data")
    shell.wait_until(under_replicated=0, offline=0)
    assert sorted(shell.run("consume", "orders").split()) == ["coffee", "milk", "tea"]


def test_the_whole_cluster_ends_with_its_command_even_if_that_is_killed(shell: Shell) -> None:
    shell.up("--brokers", "2", "--port", "0", "--data", "data")
    (cluster,) = shell.started
    processes = children(cluster.pid)
    assert len(processes) == 3
    assert shell.end(cluster, signal.SIGKILL) == -signal.SIGKILL
    wait_gone(processes)


def test_a_second_cluster_in_the_same_directory_is_refused(shell: Shell) -> None:
    shell.up("--brokers", "1", "--port", "0", "--data", "data")
    refused = shell.run("up", "--brokers", "1", "--port", "0", "--data", "data", "--http", "off", fails=True)
    assert "is in use by another cluster" in refused


def test_a_single_broker_grows_into_a_cluster_and_its_topics_get_more_replicas(
    shell: Shell, zookeeper: ZooKeeperServer
) -> None:
    ensemble = f"{zookeeper.address}/grown"
    shell.up("--listen", "127.0.0.1:0", "--data", "1")
    shell.run("topic", "create", "orders", "--partitions", "2")
    shell.run("produce", "orders", input="tea\ncoffee\n")
    found = ("cluster", "found", "--data", "1", "--zookeeper", ensemble)
    assert "is in use" in shell.run(*found, fails=True)
    shell.end(shell.started[0])
    assert "with 1 topic\n" in shell.run(*found)
    assert "not the metadata of a single broker" in shell.run(*found, fails=True)

    shell.bootstrap = ""
    for node_id in ("1", "2", "3"):
        shell.up(
            *("--listen", "127.0.0.1:0", "--data", node_id),
            *("--node-id", node_id, "--zookeeper", ensemble),
        )
    assert sorted(shell.run("consume", "orders").split()) == ["coffee", "tea"]
    shell.run("cluster", "reassign", "--brokers", "1,2,3", "--replication-factor", "3", "--watch")
    status = shell.status()
    assert (status["under_replicated"], status["offline"], status["moving"]) == (0, 0, 0)
    assert {each["replicas"] for each in status["brokers"]} == {status["partitions"]}

    shell.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports(status)[1:])
    shell.end(shell.started[1], signal.SIGKILL)
    shell.wait_until(offline=0, under_replicated=status["partitions"])
    assert sorted(shell.run("consume", "orders").split()) == ["coffee", "tea"]


def ports(status: dict[str, Any]) -> list[int]:
    return [int(each["address"].rpartition(":")[2]) for each in status["brokers"]]


def test_a_zookeeper_that_lost_its_data_gets_it_back_from_a_broker(shell: Shell, zookeeper: ZooKeeperServer) -> None:
    lost, empty = f"{zookeeper.address}/lost", f"{zookeeper.address}/empty"
    shell.up("--listen", "127.0.0.1:0", "--data", "1", "--node-id", "1", "--zookeeper", lost)
    shell.run("topic", "create", "orders")
    shell.run("produce", "orders", input="tea\n")
    shell.end(shell.started[0])

    refused = shell.run("up", "--http", "off", "--data", "1", "--zookeeper", empty, fails=True)
    assert "has lost cluster" in refused
    restore = ("cluster", "restore-metadata", "--data", "1", "--zookeeper", empty)
    assert "this copy ends at change " in shell.run(*restore, fails=True)
    assert "restored cluster " in shell.run(*restore, "--yes")
    assert "already holds a cluster's metadata" in shell.run(*restore, "--yes", fails=True)
    shell.bootstrap = ""
    shell.up("--listen", "127.0.0.1:0", "--data", "1", "--node-id", "1", "--zookeeper", empty)
    assert shell.run("consume", "orders") == "tea\n"
