"""A real ZooKeeper for all of these tests, and for each test a path of its own in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.embedded.zookeeper_server import ZooKeeperServer
from tests.support.zookeeper_ties import Ties

_numbers = itertools.count()


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="session")
def _fragile_server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(session_timeout_ms_max=20_000) as server:
        yield server


@pytest.fixture
def fragile_zookeeper(_fragile_server: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    """One that a test may kill and pause."""
    yield _fragile_server
    if not _fragile_server.is_running:
        _fragile_server.start()


@pytest.fixture
def fragile_ties(fragile_zookeeper: ZooKeeperServer, tmp_path: Path) -> Ties:
    return Ties(f"{fragile_zookeeper.address}/test/{next(_numbers)}", tmp_path)


@pytest.fixture
def ties(zookeeper: ZooKeeperServer, tmp_path: Path) -> Ties:
    return Ties(f"{zookeeper.address}/test/{next(_numbers)}", tmp_path)
