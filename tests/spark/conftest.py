"""One Spark session and one broker for all tests of the source and the sink.

A session takes five seconds to start and one process may have one. It runs as people run it, with the package installed
and the format found by name. The broker is a process of its own, so that it is not what the driver's Python waits for.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from flowstone import Broker

FLUSH_TIMEOUT_S = 30
# The first query of a session takes its time, and a test that is cut off takes the session with it.
TEST_TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Spark's workers would be `python3` of the path otherwise.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("flowstone tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # Queries of a second: compiling them well costs more than it saves.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.streaming.stopTimeout", "20s")
        # What delivery=exactly-once needs.
        .config("spark.stage.maxConsecutiveAttempts", "1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(mode="process") as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    """The name of a new topic of two partitions."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def fill(broker: Broker) -> Callable[..., None]:
    """Writes values to a topic, to one partition or each to the next of two, and returns once they can be read."""

    def write(topic: str, values: list[bytes | str | None], *, partition: int | None = None, **more: object) -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % 2 if partition is None else partition, **more)
        assert producer.flush(FLUSH_TIMEOUT_S) == 0

    return write


@pytest.fixture
def load(spark: SparkSession, broker: Broker) -> Callable[..., DataFrame]:
    """A batch read of a topic, with more options."""

    def read(topic: str, **options: object) -> DataFrame:
        reader = spark.read.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
        return reader.options(subscribe=topic).options(**options).load()

    return read
