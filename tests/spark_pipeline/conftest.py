"""One Spark session for all tests of pipelines: it takes five seconds to start and one process may have one."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flowstone import Broker
from flowstone.pipeline.engine import supervisor
from tests.spark_pipeline.shop import Shop

# The first query of a session takes its time, and a test that is cut off takes the session with it.
TEST_TIMEOUT_S = 300
# How often a run looks whether its queries have ended: most have in less time than it usually waits.
POLL_S = 0.03


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "POLL_S", POLL_S)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Spark's workers would be `python3` of the path otherwise.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("flowstone pipeline tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.streaming.stopTimeout", "20s")
        .config("spark.python.unix.domain.socket.enabled", "true")
        # What delivery=exactly-once needs.
        .config("spark.stage.maxConsecutiveAttempts", "1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def flowstone_spark(spark: SparkSession) -> SparkSession:
    """The session of the plugin's fixtures, since one process may have one."""
    return spark


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(mode="process", settings={"num.partitions": 2}) as broker:
        yield broker


@pytest.fixture
def shop(spark: SparkSession, broker: Broker, tmp_path: Path) -> Shop:
    return Shop(spark, broker, tmp_path / "shop", f"shop-{uuid.uuid4().hex[:8]}")
