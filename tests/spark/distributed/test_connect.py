"""Spark Connect: a server that has the package, and a client whose environment has only `pyspark-client`.

For `make spark`. Both environments are made once, in `.cache`; without a package index the tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.support.ports import free_ports

pytestmark = [
    pytest.mark.skipif(os.environ.get("FLOWSTONE_SPARK_LONG") != "1", reason="minutes: set FLOWSTONE_SPARK_LONG=1"),
    pytest.mark.timeout(1200),
]

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache" / "spark-connect"
SERVER = Path(pyspark.__file__).parent / "sbin" / "start-connect-server.sh"
PROGRAM = Path(__file__).with_name("connect_client.py")
# What Spark's server needs in the Python of its workers, for functions of a client such as those of foreachBatch.
OF_SERVER = ("grpcio", "grpcio-status", "googleapis-common-protos", "pandas>=2,<3", "zstandard")
BUILD_TIMEOUT_S = 600
START_TIMEOUT_S = 180
CLIENT_TIMEOUT_S = 600


def environment(name: str, packages: tuple[str, ...], *, sees_ours: bool) -> str:
    """Return the Python of an environment with these packages; skip the test if they cannot be had."""
    directory = CACHE / name
    python = directory / "bin" / "python"
    if not (directory / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True, timeout=BUILD_TIMEOUT_S)
        if sees_ours:
            (site,) = directory.glob("lib/python*/site-packages")
            (site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
        command = [str(python), "-m", "pip", "install", "--quiet", *packages]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
        if done.returncode:
            pytest.skip(f"{' '.join(packages)} cannot be installed: {done.stderr[-500:]}")
        (directory / "complete").touch()
    return str(python)


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of its own."""
    python = environment("server", OF_SERVER, sees_ours=True)
    port = free_ports()
    log = tmp_path_factory.mktemp("connect") / "server.log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    settings_given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [str(SERVER), "--wait", "--master", "local[2]", *settings_given]
    variables = {
        **os.environ,
        "PYSPARK_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
    }
    with log.open("w") as file:
        server = subprocess.Popen(
            command, stdout=file, stderr=file, env=variables, cwd=log.parent, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while "Spark Connect server started" not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(START_TIMEOUT_S)


def test_a_client_with_nothing_but_pyspark_client_reads_and_writes_topics(broker, remote, tmp_path):
    python = environment("client", ("pyspark-client",), sees_ours=False)
    topics = [f"{name}-{time.time_ns()}" for name in ("connect-from", "connect-to", "connect-counts")]
    for topic in topics:
        broker.create_topic(topic, partitions=2)
    alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    done = subprocess.run(
        [python, str(PROGRAM), remote, broker.bootstrap, *topics, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=CLIENT_TIMEOUT_S,
        check=False,
        cwd=tmp_path,
        env=alone,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["read"] == 100
    assert "flowstone: subscribe: there is no topic nowhere" in found["error"]
    source, target, counts = (Counter((each.key, each.value) for each in broker.records(topic)) for topic in topics)
    assert source == target == Counter((b"%d" % (each % 3), b"%d" % each) for each in range(100))
    assert counts == {(b"0", b"34"): 1, (b"1", b"33"): 1, (b"2", b"33"): 1}
