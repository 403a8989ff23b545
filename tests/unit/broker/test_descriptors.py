"""Connections and log files share the descriptors that the system allows: neither may starve the other."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.app import RESERVED_DESCRIPTORS, App
from tests.support.running_app import RunningApp
from tests.support.wire_client import batch_of

FEW_DESCRIPTORS = 400
MANY_PARTITIONS = 200


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


@pytest.mark.usefixtures("few_descriptors")
def test_a_stop_is_clean_with_more_log_files_than_descriptors(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as running, running.client() as client:
        client.create_topic("orders", MANY_PARTITIONS)
        for partition in range(MANY_PARTITIONS):
            assert client.produce("orders", batch_of(b"v"), partition=partition).error_code == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()
