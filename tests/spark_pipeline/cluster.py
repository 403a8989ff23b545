"""A standalone Spark cluster on loopback, and its processes, for tests that kill some of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.ports import free_ports

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
START_TIMEOUT_S = 120


@dataclass
class StandaloneCluster:
    address: str
    workers: list[subprocess.Popen[bytes]]

    def executors(self, worker: int) -> list[int]:
        """Return the ids of the executor processes of a worker, its only children."""
        command = ["ps", "--ppid", str(self.workers[worker].pid), "-o", "pid=", "-o", "stat="]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        found = map(str.split, listed.stdout.splitlines())
        return [int(pid) for pid, state in found if not state.startswith("Z")]


@contextmanager
def standalone_cluster(directory: Path, workers: int, *, python: str = sys.executable) -> Iterator[StandaloneCluster]:
    """Run a master and workers with one core each, whose machines have `python` for tasks."""
    port = free_ports()
    address = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        _start(running, directory, "master.Master", "New state: ALIVE", ["--port", str(port)], python)
        started = [
            _start(
                running,
                directory / f"worker-{number}",
                "worker.Worker",
                "Successfully registered with master",
                ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work-{number}"), address],
                python,
            )
            for number in range(workers)
        ]
        yield StandaloneCluster(address, started)


def _start(
    running: ExitStack, directory: Path, name: str, sentence: str, arguments: list[str], python: str
) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{name}.log"
    environment = {**os.environ, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0"]
    with log.open("w") as file:
        process = subprocess.Popen([*command, *arguments], stdout=file, stderr=file, env=environment)
    running.callback(_stop, process)
    deadline = time.monotonic() + START_TIMEOUT_S
    while sentence not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(START_TIMEOUT_S)
