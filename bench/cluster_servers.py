"""The measured clusters of three brokers: on loopback, with data on one disk, stopped by process id.

Flowstone's cluster is `flowstone up --brokers 3` with its ZooKeeper; Kafka's is three KRaft nodes, each both broker and
controller, its minimum. A cluster's cost is the sum over its brokers and its ZooKeeper. The module knows nothing of the
load. Every wait is bounded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scripts.fetch_kafka import java_command, kafka_classpath

from bench import processes, wire
from bench.connection import Connection
from bench.servers import (
    DELETE_AT_ONCE,
    DELETE_TIMEOUT_SECONDS,
    FORMAT_TIMEOUT_SECONDS,
    KAFKA_JVM_FLAGS,
    POLL_INTERVAL_SECONDS,
    Server,
    ServerError,
    free_ports,
    kafka_uuid,
)

BROKERS = 3
# Three JVMs start at once, on a shared machine.
START_TIMEOUT_SECONDS = 120
# The settings of `flowstone up --brokers 3`, also used for Kafka.
MIN_INSYNC_REPLICAS = "2"


class Cluster(ABC):
    """A cluster; inside its `with` block all brokers answer."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = DELETE_AT_ONCE | dict(settings or {})
        self._stack = ExitStack()
        # By node id.
        self.addresses: dict[int, str] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
            self._wait_complete()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        """The addresses for clients' bootstrap.servers."""
        return ",".join(self.addresses.values())

    def cpu_seconds(self) -> float:
        return sum(map(processes.cpu_seconds, self._pids()))

    def rss_mb(self) -> float:
        return sum(map(processes.rss_mb, self._pids()))

    def wait_until_deleted(self, topic: str) -> None:
        deadline = time.monotonic() + DELETE_TIMEOUT_SECONDS
        while any(path for folder in self._folders() for path in folder.glob(f"{topic}*")):
            if time.monotonic() > deadline:
                raise ServerError(f"{topic} was not deleted within {DELETE_TIMEOUT_SECONDS} s")
            time.sleep(POLL_INTERVAL_SECONDS)

    @abstractmethod
    def kill(self, node_id: int) -> None:
        """Kill a broker with SIGKILL."""

    @abstractmethod
    def check_running(self) -> None:
        """Raise ServerError if a broker has ended that was not killed."""

    @abstractmethod
    def _start(self) -> None:
        """Start the processes and register them for cleanup."""

    @abstractmethod
    def _pids(self) -> list[int]:
        """Return the ids of the cluster's processes."""

    @abstractmethod
    def _folders(self) -> list[Path]:
        """Return the brokers' data directories."""

    def _wait_complete(self) -> None:
        """Wait until every broker knows all the others."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        for address in self.addresses.values():
            while not _knows_all(address):
                self.check_running()
                if time.monotonic() > deadline:
                    raise ServerError(f"the broker at {address} does not know all others")
                time.sleep(POLL_INTERVAL_SECONDS)


class FlowstoneCluster(Cluster):
    def _start(self) -> None:
        self._launcher = _Launcher(self._settings)
        self._stack.enter_context(self._launcher)
        self._brokers = {each["node_id"]: each["pid"] for each in self._launcher.announced}
        self.addresses = {each["node_id"]: each["ready"] for each in self._launcher.announced}

    def kill(self, node_id: int) -> None:
        os.kill(self._brokers[node_id], signal.SIGKILL)

    def check_running(self) -> None:
        self._launcher.check_running()

    def _pids(self) -> list[int]:
        """Return all child processes of the command, which itself only waits."""
        return self._launcher.children()

    def _folders(self) -> list[Path]:
        return [self._launcher.data / str(node_id) for node_id in self.addresses]


class _Launcher(Server):
    """The process of `flowstone up --brokers 3`."""

    name = "flowstone-cluster"

    def _prepare(self) -> list[str]:
        command = str(Path(sys.executable).with_name("flowstone"))
        options = [word for key, value in self._settings.items() for word in ("--set", f"{key}={value}")]
        return [
            *(command, "up", "--brokers", str(BROKERS), "--data", str(self.data), "--listen", "127.0.0.1:0"),
            *("--http", "off", "--json", *options),
        ]

    def _ready(self) -> bool:
        return any(line.startswith("{") and line.endswith("}") for line in self._lines())

    @property
    def announced(self) -> list[dict[str, Any]]:
        """Return the startup information of each broker."""
        line = next(line for line in self._lines() if line.startswith("{"))
        said: list[dict[str, Any]] = json.loads(line)["brokers"]
        return said

    def children(self) -> list[int]:
        listed = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(word) for each in listed for word in each.read_text().split()]

    def _lines(self) -> list[str]:
        return self._output.read_text(errors="replace").splitlines()


class KafkaCluster(Cluster):
    def _start(self) -> None:
        ports = free_ports(2 * BROKERS)
        voters = {node_id: f"127.0.0.1:{ports.pop()}" for node_id in range(1, BROKERS + 1)}
        self.addresses = {node_id: f"127.0.0.1:{ports.pop()}" for node_id in voters}
        cluster_id = kafka_uuid()
        self._nodes = {node_id: _KafkaNode(node_id, address, voters, cluster_id, self._settings)
                       for node_id, address in self.addresses.items()}  # fmt: skip
        with ThreadPoolExecutor(BROKERS) as pool:  # formatting takes a JVM each
            list(pool.map(_KafkaNode.prepare, self._nodes.values()))
        self._killed: set[int] = set()
        for node in self._nodes.values():
            self._stack.callback(node.stop)
            node.launch()
            self._stack.callback(node.kill)  # otherwise the last one would wait for a quorum that no longer exists

    def kill(self, node_id: int) -> None:
        self._killed.add(node_id)
        self._nodes[node_id].kill()

    def check_running(self) -> None:
        for node_id, node in self._nodes.items():
            if node_id not in self._killed:
                node.check_running()

    def _pids(self) -> list[int]:
        return [node.pid for node_id, node in self._nodes.items() if node_id not in self._killed]

    def _folders(self) -> list[Path]:
        return [node.data for node in self._nodes.values()]


class _KafkaNode(Server):
    """One Kafka node, broker and controller, with Kafka's defaults except for the settings here."""

    name = "kafka-node"

    def __init__(
        self, node_id: int, address: str, voters: Mapping[int, str], cluster_id: str, settings: Mapping[str, str]
    ) -> None:
        super().__init__(settings)
        self.address = address
        self._node_id, self._voters, self._cluster_id = node_id, voters, cluster_id

    def _prepare(self) -> list[str]:
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(self._node_id),
            "controller.quorum.voters": ",".join(f"{voter}@{address}" for voter, address in self._voters.items()),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{self._voters[self._node_id]}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data),
            "min.insync.replicas": MIN_INSYNC_REPLICAS,
            "log.initial.task.delay.ms": "0",  # otherwise the first deletion waits for half a minute
            **self._settings,
        }
        file = self._folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        java, classpath = java_command(), kafka_classpath()
        done = subprocess.run(
            [java, "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(file)],
            capture_output=True, text=True, timeout=FORMAT_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ServerError(f"Kafka's storage could not be formatted: {(done.stdout + done.stderr).strip()}")
        # In a session of its own, as Flowstone's brokers are: Linux shares processors out by session (autogroup).
        return ["setsid", java, *KAFKA_JVM_FLAGS, "-cp", classpath, "kafka.Kafka", str(file)]

    def _ready(self) -> bool:
        return _knows_all(self.address)


def _knows_all(address: str) -> bool:
    try:
        with Connection(address) as connection:
            return wire.brokers_alive(connection.ask(wire.metadata())) == BROKERS
    except OSError:
        return False
