"""The measured brokers: started on loopback with their own data directories, and always stopped by process id.

A server is a context manager: inside it the broker answers requests; afterwards the process has ended and its data is
removed. Data is on a real disk (a tmpfs would measure memory). The module starts each kind of broker and reads its cost
from the kernel; it knows nothing of the load. Every wait is bounded.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.fetch_kafka import java_command, kafka_classpath

from bench import processes, wire
from bench.connection import Connection

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 30
DELETE_TIMEOUT_SECONDS = 30
FORMAT_TIMEOUT_SECONDS = 60
POLL_INTERVAL_SECONDS = 0.02
OUTPUT_TAIL_BYTES = 2000

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})

# What kafka-server-start.sh gives the JVM when nothing is set.
KAFKA_JVM_FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

# Otherwise a deleted topic's files, and their page-cache memory, stay for a minute.
DELETE_AT_ONCE = {"log.segment.delete.delay.ms": "0"}


class ServerError(Exception):
    """A broker did not start or stop. The message is for users."""


class Server(ABC):
    """A broker process. Subclasses define the command and how to tell that it is ready."""

    name = ""
    more_listeners = ""  # as `listeners` has them, after a comma

    def __init__(self, settings: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        self._settings = dict(settings or {})
        self._parent = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not started"
        return self._process.pid

    def __enter__(self) -> Self:
        self.prepare()
        try:
            self.launch()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def prepare(self) -> None:
        """Create the data directory and its initial contents, without starting the process."""
        self._folder = Path(tempfile.mkdtemp(prefix=f"bench-{self.name}-", dir=self._parent or disk_folder()))
        try:
            self._output = self._folder / "output"
            self._command = self._prepare()
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """Start the process, on existing data if there is any, without waiting until it is ready."""
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def wait_until_ready(self) -> None:
        self._wait(self._ready, START_TIMEOUT_SECONDS, "start")

    def kill(self) -> None:
        """Kill the process with SIGKILL and keep its data."""
        assert self._process is not None, "the server is not started"
        self._process.kill()
        self._process.wait()

    def twin(self) -> Self:
        """Return another server of the same kind and settings, not started."""
        return type(self)(self._settings, self._parent)

    def check_running(self) -> None:
        assert self._process is not None, "the server is not started"
        if self._process.poll() is not None:
            raise ServerError(f"{self.name} ended with exit {self._process.returncode}: {self._output_tail()}")

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.pid)

    def rss_mb(self) -> float:
        return processes.rss_mb(self.pid)

    def peak_rss_mb(self) -> float:
        return processes.peak_rss_mb(self.pid)

    def wait_until_deleted(self, topic: str) -> None:
        """Wait until a topic's files are removed, which happens after the response and frees their memory."""
        self._wait(lambda: not any(self.data.glob(f"{topic}*")), DELETE_TIMEOUT_SECONDS, f"delete {topic}")

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @abstractmethod
    def _prepare(self) -> list[str]:
        """Create what the broker needs in its folder; return the command that runs it."""

    @abstractmethod
    def _ready(self) -> bool:
        """Return whether the broker answers requests."""

    def _wait(self, done: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not done():
            self.check_running()
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} did not {what} within {timeout_seconds} s: {self._output_tail()}")
            time.sleep(POLL_INTERVAL_SECONDS)

    def _output_tail(self) -> str:
        return self._output.read_bytes()[-OUTPUT_TAIL_BYTES:].decode(errors="replace").strip() or "no output"

    def stop(self) -> None:
        """End the process and remove its data."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder)


class Kafka(Server):
    """Apache Kafka as one node, broker and controller, with its defaults except for the settings here."""

    name = "kafka"

    def _prepare(self) -> list[str]:
        port, controller_port = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller_port}{self.more_listeners}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data),
            "offsets.topic.replication.factor": "1",
            "log.initial.task.delay.ms": "0",  # otherwise the first deletion waits for half a minute
            **DELETE_AT_ONCE,
            **self._settings,
        }
        file = self._folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        java, classpath = java_command(), kafka_classpath()
        cluster_id = kafka_uuid()
        done = subprocess.run(
            [java, "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(file)],
            capture_output=True, text=True, timeout=FORMAT_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ServerError(f"Kafka's storage could not be formatted: {(done.stdout + done.stderr).strip()}")
        return [java, *KAFKA_JVM_FLAGS, "-cp", classpath, "kafka.Kafka", str(file)]

    def _ready(self) -> bool:
        try:
            with Connection(self.address) as connection:
                return wire.brokers_alive(connection.ask(wire.metadata())) > 0
        except OSError:
            return False


class Flowstone(Server):
    """Flowstone, started by its command from this program's environment."""

    name = "flowstone"

    def _prepare(self) -> list[str]:
        (port,) = free_ports(1)
        command = str(Path(sys.executable).with_name("flowstone"))
        if not Path(command).exists():
            raise ServerError(f"no flowstone command beside {sys.executable}: install the package there first")
        self.address = f"127.0.0.1:{port}"
        settings = DELETE_AT_ONCE | self._settings
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return [command, "up", "--data", str(self.data), "--listen", self.address, "--http", "off", *options]

    def _ready(self) -> bool:
        return f"ready {self.address}\n" in self._output.read_text(errors="replace")


def free_ports(count: int) -> list[int]:
    """Return different ports of loopback that are currently free."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def disk_folder() -> Path:
    """Return a new temporary folder on a real disk."""
    for folder in (tempfile.gettempdir(), "/var/tmp", str(Path.home())):
        kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=False)
        if kind.returncode == 0 and kind.stdout.strip() not in MEMORY_FILE_SYSTEMS:
            return Path(folder)
    raise ServerError("every temporary folder is in memory: name one on a disk with TMPDIR")


def kafka_uuid() -> str:
    """Return a random id in Kafka's format that does not start with a dash, which its tools take for an option."""
    return "F" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
