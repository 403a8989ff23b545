from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

import flowstone

TIMEOUT_S = 20


@pytest.fixture
def broker() -> Iterator[flowstone.Broker]:
    """A clock that leaps is no good for tests that share a broker."""
    with flowstone.Broker() as broker:
        broker.create_topic("ledger")
        yield broker


@pytest.fixture
def producer(broker) -> Producer:
    config = {"transactional.id": "bank", "transaction.timeout.ms": 60_000}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **config})
    producer.init_transactions(TIMEOUT_S)
    return producer


def transfer(producer):
    producer.begin_transaction()
    producer.produce("ledger", b"alice -10")
    producer.produce("ledger", b"bob +10")
    assert producer.flush(TIMEOUT_S) == 0


def committed(broker):
    return [record.value for record in broker.records("ledger", read_committed=True)]


def test_a_transfer_is_seen_as_a_whole(broker, producer):
    transfer(producer)
    assert broker.transactions()["bank"].is_open
    assert committed(broker) == []
    producer.commit_transaction(TIMEOUT_S)
    assert broker.wait_for_transaction("bank", "CompleteCommit").partitions == ()
    assert committed(broker) == [b"alice -10", b"bob +10"]


def test_an_aborted_transfer_is_not_seen(broker, producer):
    transfer(producer)
    producer.abort_transaction(TIMEOUT_S)
    broker.wait_for_transaction("bank", "CompleteAbort")
    assert len(broker.records("ledger")) == 2
    assert committed(broker) == []


def test_a_forgotten_transfer_expires(broker, producer):
    transfer(producer)
    broker.clock.advance(minutes=1)
    broker.wait_for_transaction("bank", "CompleteAbort")
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_S)
    assert committed(broker) == []


def test_a_shared_broker_keeps_transactional_ids_apart(flowstone_broker, flowstone_topic):
    producer = Producer({"bootstrap.servers": flowstone_broker.bootstrap, "transactional.id": flowstone_topic})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(flowstone_topic, b"value")
    producer.commit_transaction(TIMEOUT_S)
    (record,) = flowstone_broker.wait_for(flowstone_topic, 1, read_committed=True)
    assert record.value == b"value"
    assert flowstone_topic in flowstone_broker.transactions()
