"""A broker for the tests of a module, and topics with records in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from flowstone.client import Cluster, Producer
from flowstone.embedded import Broker
from flowstone.types import TopicPartition
from tests.unit.client.batches import batch_of

Fill = Callable[..., TopicPartition]
_numbers = count()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap, deadline_s=10) as cluster:
        yield cluster


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"topic-{next(_numbers)}"
    broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def fill(cluster: Cluster, topic: str) -> Fill:
    """Writes batches of so many records to a partition: each value is its record's offset."""

    def fill(batches: int, records: int = 10, value_bytes: int = 0, partition: int = 0) -> TopicPartition:
        filled = TopicPartition(topic, partition)
        with Producer(cluster) as producer:
            for number in range(batches):
                values = [b"%d" % (number * records + each) for each in range(records)]
                producer.send(filled, batch_of(*(value.ljust(value_bytes) for value in values)), records)
        return filled

    return fill
