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


@pytest.fixture
def ties(zookeeper: ZooKeeperServer, tmp_path: Path) -> Ties:
    return Ties(f"{zookeeper.address}/test/{next(_numbers)}", tmp_path)
