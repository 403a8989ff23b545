"""Connections and log files share the descriptors that the system allows: neither may starve the other."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from flowstone.app import App
from flowstone.broker.wiring import RESERVED_DESCRIPTORS
from tests.support.wire_client import Client, batch_of

FEW_DESCRIPTORS = 400
MANY_PARTITIONS = 200
STOP_TIMEOUT_S = 30


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize("log_open_files_max", [16, 4096])
def test_connections_and_log_files_leave_descriptors_for_what_must_not_fail(
    tmp_path: Path, log_open_files_max: int
) -> None:
    config = App({"log.dirs": str(tmp_path), "log.open.files.max": str(log_open_files_max)}).config
    taken = config.max_connections + config.log_open_files_max
    assert taken == FEW_DESCRIPTORS - RESERVED_DESCRIPTORS


def test_a_stop_is_clean_with_more_log_files_than_descriptors(tmp_path: Path) -> None:
    """In a process of its own: this one's descriptors are the other tests' too."""
    data = tmp_path / "data"
    command = [sys.executable, "-m", "flowstone.cli", "up", "--data", str(data), "--listen", "127.0.0.1:0"]
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (FEW_DESCRIPTORS, FEW_DESCRIPTORS))
    with subprocess.Popen([*command, "--http", "off"], stdout=subprocess.PIPE, text=True, preexec_fn=limit) as broker:
        try:
            assert broker.stdout is not None
            ready = next(line for line in broker.stdout if line.startswith("ready "))
            host, _, port = ready.removeprefix("ready ").strip().rpartition(":")
            with Client((host, int(port))) as client:
                client.create_topic("orders", MANY_PARTITIONS)
                for partition in range(MANY_PARTITIONS):
                    assert client.produce("orders", batch_of(b"v"), partition=partition).error_code == 0
        finally:
            broker.terminate()
        assert broker.wait(STOP_TIMEOUT_S) == 0
    assert (data / ".kafka_cleanshutdown").exists()
