"""One broker for all the tests of real clients, the three libraries as parameters, and a topic name per test.

The broker runs in a thread, in a temporary directory: what these tests show is what clients and broker say to each
other, and a process of its own would add nothing to that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from flowstone.embedded import Broker

# The drivers are a package of the tests, and scripts one of the repository: neither is installed.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from tests.clients.aiokafka_driver import AiokafkaDriver  # noqa: E402 - after the path is set
from tests.clients.confluent_driver import ConfluentDriver  # noqa: E402
from tests.clients.driver import Driver  # noqa: E402
from tests.clients.kafka_python_driver import KafkaPythonDriver  # noqa: E402

DRIVERS: tuple[type[Driver], ...] = (ConfluentDriver, KafkaPythonDriver, AiokafkaDriver)
AUTO_CREATED_PARTITIONS = 3

_numbers = count()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(settings={"num.partitions": str(AUTO_CREATED_PARTITIONS)}) as broker:
        yield broker


@pytest.fixture(scope="session")
def drivers(broker: Broker) -> Iterator[dict[str, Driver]]:
    """Every library, by its name."""
    drivers = {kind.name: kind(broker.bootstrap) for kind in DRIVERS}
    yield drivers
    for driver in drivers.values():
        driver.close()


@pytest.fixture(params=[kind.name for kind in DRIVERS])
def client(request: pytest.FixtureRequest, drivers: dict[str, Driver]) -> Driver:
    return drivers[request.param]


@pytest.fixture
def topic_name() -> str:
    """A name that no other test uses; the topic is not there yet."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def topic(client: Driver, topic_name: str) -> str:
    """A topic of one partition, created by the client under test."""
    client.create_topic(topic_name, 1)
    return topic_name
