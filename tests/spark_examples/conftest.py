"""One session and one broker for all the examples, as `tests/spark` has them for its tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import flowstone
from examples.spark import stage

# A test that is cut off takes the session with it.
TEST_TIMEOUT_S = 300
LONG = "FLOWSTONE_SPARK_LONG"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: run by `make spark` only")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent != Path(__file__).parent:
            continue
        item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
        if item.get_closest_marker("long") and not os.environ.get(LONG):
            item.add_marker(pytest.mark.skip(reason=f"takes long: `make spark`, which sets {LONG}, runs it"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = stage.open_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    with flowstone.Broker(mode="process") as broker:
        yield broker.bootstrap
