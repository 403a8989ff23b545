"""A broker in this process, so that tests can plant transactions that no coordinator knows; stock producers beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from flowstone.cli.txn.broker_link import BrokerLink
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic

TIMEOUT_S = 60

Begin = Callable[..., ck.Producer]
Plant = Callable[..., TransactionalTopic]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    directory = str(tmp_path_factory.mktemp("transactions"))
    with RunningApp(directory, default_http="127.0.0.1:0", idle_poll_us="0") as running:
        yield running


@pytest.fixture
def broker(app: RunningApp) -> Any:
    """Where commands connect to."""
    return SimpleNamespace(bootstrap="{}:{}".format(*app.app.addresses["PLAINTEXT"]))


@pytest.fixture
def link(broker: Any) -> Iterator[BrokerLink]:
    with BrokerLink(broker.bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(app: RunningApp, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions."""
    name = f"t-{abs(hash(request.node.nodeid))}"
    with app.client() as client:
        assert client.create_topic(name, partitions=2) == 0
    return name


@pytest.fixture
def plant(app: RunningApp, topic: str) -> Plant:
    """Write the first batch of a transaction past the check of the coordinator, as a delayed produce once could."""

    def plant(producer_id: int, *values: bytes, epoch: int = 0) -> TransactionalTopic:
        written = TransactionalTopic(app, topic)
        written.write(producer_id, *(values or (b"hanging",)), epoch=epoch)
        return written

    return plant


@pytest.fixture
def begin(broker: Any, topic: str) -> Iterator[Begin]:
    """Begin a transaction with a stock producer: a record in each of the partitions. It is aborted at the end."""
    producers = []

    def begin(transactional_id: str, *partitions: int, timeout_ms: int = 60_000) -> ck.Producer:
        producer = ck.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for partition in partitions or (0,):
            producer.produce(topic, b"v", partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        producers.append(producer)
        return producer

    yield begin
    for each in producers:
        try:
            each.abort_transaction(TIMEOUT_S)
        except ck.KafkaException:
            continue  # the test has ended it
