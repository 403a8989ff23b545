"""The ZooKeeper we start ourselves: serves when constructed, ends with its owner, says what it lacks."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from flowstone.embedded.zookeeper_server import ZooKeeperServer
from flowstone.errors import StartupError

OWNER = """
import sys, time
from flowstone.embedded.zookeeper_server import ZooKeeperServer
server = ZooKeeperServer(sys.argv[1])
print(server.pid, flush=True)
time.sleep(600)
"""


def test_what_is_written_survives_a_kill(tmp_path: Path) -> None:
    with ZooKeeperServer(str(tmp_path)) as server:
        client = KazooClient(server.address)
        client.start()
        client.create("/kept", b"data")
        server.kill()
        server.start()
        assert client.retry(client.get, "/kept")[0] == b"data"
        client.stop()
        client.close()


def test_it_ends_with_the_process_that_started_it_however_that_ends(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    process = os.pidfd_open(int(owner.stdout.readline()))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert select.select([process], [], [], 10)[0] == [process]
    os.close(process)


def test_without_java_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(StartupError, match="needs Java"):
        ZooKeeperServer()


def test_without_pyspark_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StartupError, match=r"flowstone\[spark\]"):
        ZooKeeperServer()


def test_a_port_that_is_taken_is_an_error_in_a_sentence(zookeeper: ZooKeeperServer) -> None:
    with pytest.raises(StartupError, match=r"cannot listen|in use"):
        ZooKeeperServer(port=zookeeper.port)
