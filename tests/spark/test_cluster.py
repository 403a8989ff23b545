"""Source and sink with executors that are not the driver: a standalone master and worker on loopback.

For `make spark`. What local mode hides: options, ranges and readers are pickled to other processes, which find the
package by themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from tests.support.ports import free_ports

pytestmark = pytest.mark.skipif(
    os.environ.get("FLOWSTONE_SPARK_LONG") != "1", reason="takes a minute: set FLOWSTONE_SPARK_LONG=1"
)

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60
QUERY_TIMEOUT_S = 240
RECORDS = 20_000


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with one worker of two cores."""
    port = free_ports()
    address = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    master = ["--port", str(port)]
    worker = ["--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"), address]
    with ExitStack() as running:
        for name, arguments, sentence in (
            ("master.Master", master, "New state: ALIVE"),
            ("worker.Worker", worker, "Successfully registered with master"),
        ):
            command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0"]
            log = tmp_path / f"{name}.log"
            with log.open("w") as file:
                process = subprocess.Popen([*command, *arguments], stdout=file, stderr=file, env=environment)
            running.callback(stop, process)
            wait_for(sentence, log)
        yield address


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(START_TIMEOUT_S)


def wait_for(sentence: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while sentence not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_executors_of_another_process_read_and_write(broker, fill, master, tmp_path):
    for topic in ("from", "to"):
        broker.create_topic(topic, partitions=2)
    fill("from", [f"v{number}" for number in range(RECORDS)])
    program = Path(__file__).with_name("cluster_query.py")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, str(program), master, broker.bootstrap, str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        timeout=QUERY_TIMEOUT_S,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert f"counts {RECORDS} {RECORDS} executors 1" in done.stdout
    values = [record.value for record in broker.records("to")]
    assert sorted(values) == sorted(f"v{number}".encode() for number in range(RECORDS))
