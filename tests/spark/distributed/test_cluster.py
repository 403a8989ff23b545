"""Source and sink with executors that are not the driver: a standalone master and workers on loopback.

For `make spark`. What local mode hides: options, ranges and readers are pickled to other processes, which find the
package by themselves, some of which die, and some of whose machines do not have it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.spark_pipeline.cluster import StandaloneCluster, standalone_cluster
from tests.support.pages import DOCS

pytestmark = [
    pytest.mark.skipif(os.environ.get("FLOWSTONE_SPARK_LONG") != "1", reason="minutes: set FLOWSTONE_SPARK_LONG=1"),
    pytest.mark.timeout(1500),
]

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("cluster_query.py")
QUERY_TIMEOUT_S = 600
KILL_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 900
RECORDS = 20_000
WITHOUT_FLOWSTONE = "/usr/bin/python3"


@pytest.fixture
def topics(broker, fill):
    """Two new topics of two partitions, the first with records."""
    made = [f"{name}-{time.time_ns()}" for name in ("from", "to")]
    for topic in made:
        broker.create_topic(topic, partitions=2)
    fill(made[0], [f"v{number}" for number in range(RECORDS)])
    return made


def values(broker, topic):
    return Counter((record.value or b"").decode() for record in broker.records(topic))


WANTED = Counter(f"v{number}" for number in range(RECORDS))


def driver(cluster: StandaloneCluster, bootstrap, topics, checkpoint, per_trigger=RECORDS):
    """Start the program on the cluster, in an environment where executors have the package."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
    arguments = [cluster.address, bootstrap, *topics, str(checkpoint), str(per_trigger)]
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process):
    try:
        output, errors = process.communicate(timeout=QUERY_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-5000:]
    return output


def test_executors_of_another_process_read_and_write(broker, topics, tmp_path):
    with standalone_cluster(tmp_path / "cluster", workers=1) as cluster:
        output = finish(driver(cluster, broker.bootstrap, topics, tmp_path / "checkpoint"))
    assert f"counts {RECORDS} {RECORDS} executors 1" in output
    assert values(broker, topics[1]) == WANTED


def test_a_stream_goes_on_without_a_worker_that_is_killed(broker, topics, tmp_path):
    with standalone_cluster(tmp_path / "cluster", workers=2) as cluster:
        process = driver(cluster, broker.bootstrap, topics, tmp_path / "checkpoint", per_trigger=RECORDS // 20)
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while sum(values(broker, topics[1]).values()) < RECORDS // 4 or not cluster.executors(1):
            assert process.poll() is None, process.stderr.read()[-5000:]
            assert time.monotonic() < deadline, "the query wrote nothing"
            time.sleep(0.1)
        executors = cluster.executors(1)
        cluster.workers[1].send_signal(signal.SIGKILL)
        for pid in executors:  # as if the machine had died
            os.kill(pid, signal.SIGKILL)
        written = sum(values(broker, topics[1]).values())
        assert written < RECORDS, "the query was over before the worker was killed"
        finish(process)
    found = values(broker, topics[1])
    assert found.keys() == WANTED.keys(), "records were lost"
    repeated = sum(found.values()) - RECORDS
    assert repeated <= RECORDS // 20, "more than the micro-batch that was interrupted was written again"


def test_an_archive_takes_the_package_to_workers_that_do_not_have_it(broker, topics, tmp_path):
    """The commands are those of docs/spark-cluster.md, but for the address of the master and the checkout."""
    look = [WITHOUT_FLOWSTONE, "-c", "import flowstone"]
    without = subprocess.run(look, cwd=tmp_path, capture_output=True, check=False, env={"PATH": os.environ["PATH"]})
    assert without.returncode, f"{WITHOUT_FLOWSTONE} has the package: the test would show nothing"
    build, submit = documented_commands()
    run_in_shell(build.replace("'flowstone[spark]'", f"'{ROOT}[spark]'"), tmp_path, BUILD_TIMEOUT_S)
    (tmp_path / "job.py").write_text(PROGRAM.read_text())
    with standalone_cluster(tmp_path / "cluster", workers=2, python=WITHOUT_FLOWSTONE) as cluster:
        arguments = f"{cluster.address} {broker.bootstrap} {' '.join(topics)} {tmp_path / 'checkpoint'} {RECORDS}"
        command = submit.replace("--master yarn", f"--master {cluster.address}") + f" {arguments}"
        # The archive is the only one that has the package: its directory is made by each executor.
        run_in_shell(command, tmp_path, QUERY_TIMEOUT_S)
        unpacked = list((tmp_path / "cluster").glob("work-*/*/*/env/bin/python"))
    assert unpacked, "no executor unpacked the archive"
    assert values(broker, topics[1]) == WANTED


def documented_commands() -> list[str]:
    page = (DOCS / "spark-cluster.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "--archives" in text]
    commands = block.strip().splitlines()
    assert len(commands) == 2
    return commands


def run_in_shell(command: str, directory: Path, timeout_s: float) -> str:
    """Run a command of a page as a user does, with Spark's programs on the path."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    shell = ["bash", "-c", command]
    done = subprocess.run(
        shell, cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout
