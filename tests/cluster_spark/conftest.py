"""One Spark session with two formats, ours and the stock connector's, and one cluster of three broker processes.

    FLOWSTONE_CLUSTER_LONG=1 python -m pytest tests/cluster_spark

Every record has three copies, and two must have it before it is acknowledged. A task of Spark's is tried once: whatever
a dead broker means to a source or a sink, it must bear by itself.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from scripts.fetch_kafka import FetchError, java_command
from scripts.fetch_spark_kafka import connector_jars

from tests.chaos.cluster import ChaosCluster
from tests.chaos.network import Loopback
from tests.cluster_spark.copying import PARTITIONS, STOCK, Copying

# A busy machine takes a minute for the first query alone.
TEST_TIMEOUT_S = 600
SWITCH = "FLOWSTONE_CLUSTER_LONG"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skipped = pytest.mark.skipif(os.environ.get(SWITCH) != "1", reason=f"takes minutes: set {SWITCH}=1")
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(skipped)
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def jars() -> str:
    """Of the stock connector; none where they cannot be had."""
    try:
        java_command()
        return connector_jars()
    except FetchError:
        return ""


@pytest.fixture(scope="session")
def spark(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Spark's workers would be `python3` of the path otherwise.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("flowstone cluster tests")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosCluster]:
    with ChaosCluster(tmp_path_factory.mktemp("cluster"), Loopback()) as cluster:
        yield cluster
        assert cluster.faults() == []


@pytest.fixture(params=["flowstone", STOCK])
def copying(
    request: pytest.FixtureRequest, spark: SparkSession, cluster: ChaosCluster, jars: str, tmp_path: Path
) -> Copying:
    """Two new topics of a whole cluster, and a format to read and write them with."""
    if request.param == STOCK and not jars:
        pytest.skip("the stock connector cannot be had; see scripts/fetch_spark_kafka.py")
    for node in cluster.nodes.values():
        if not node.is_running:
            node.start()
    name = f"t-{uuid.uuid4().hex[:12]}"
    for topic in (name, f"{name}-copy"):
        cluster.create_topic(topic, PARTITIONS)
    assert cluster.wait_in_sync()
    return Copying(spark, cluster, request.param, name, f"{name}-copy", tmp_path)
