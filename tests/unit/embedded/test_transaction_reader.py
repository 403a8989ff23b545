"""What a program that embeds a broker sees of transactions, and what its clock does to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from flowstone.embedded import Broker, NotInProcessMode, Record
from flowstone.types import TopicPartition
from tests.support.transactional_records import TransactionalWriter

TIMEOUT_S = 20
TOPIC, ID = "orders", "shop"
TRANSACTION_TIMEOUT_MS = 60_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic(TOPIC, partitions=2)
        yield broker


def begun(broker: Broker, *values: str) -> Producer:
    """Return a producer in a transaction that has written these values."""
    config = {"transactional.id": ID, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "log_level": 0}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **config})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(TOPIC, value, partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    return producer


def test_a_broker_without_transactions_has_none(broker: Broker) -> None:
    assert broker.transactions() == {}


def test_a_transaction_is_shown_from_its_begin_to_its_end(broker: Broker) -> None:
    producer = begun(broker)
    assert broker.transactions()[ID].state == "Empty"
    producer.produce(TOPIC, "tea", partition=1)
    producer.flush(TIMEOUT_S)

    (status,) = broker.transactions().values()
    assert status == broker.wait_for_transaction(ID, "Ongoing")
    assert status.is_open
    assert status.transactional_id == ID
    assert status.partitions == (TopicPartition(TOPIC, 1),)
    assert status.timeout_ms == TRANSACTION_TIMEOUT_MS
    assert status.start_timestamp_ms is not None
    assert status.start_timestamp_ms <= broker.clock.time_ms()

    producer.commit_transaction(TIMEOUT_S)
    done = broker.wait_for_transaction(ID, "CompleteCommit")
    assert (done.is_open, done.partitions, done.producer_id) == (False, (), status.producer_id)


def test_a_transaction_expires_with_the_clock(broker: Broker) -> None:
    producer = begun(broker, "lost")
    TransactionalWriter(broker.bootstrap, TOPIC, 1).write_plain("behind it")
    broker.clock.advance(milliseconds=TRANSACTION_TIMEOUT_MS // 2)
    assert broker.transactions()[ID].is_open
    assert broker.records(TOPIC, read_committed=True) == []

    broker.clock.advance(milliseconds=TRANSACTION_TIMEOUT_MS // 2)
    broker.wait_for_transaction(ID, "CompleteAbort")
    assert values(broker.records(TOPIC, read_committed=True)) == ["behind it"]
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].fatal()


def test_an_unused_transactional_id_is_forgotten_with_the_clock(broker: Broker) -> None:
    begun(broker, "tea").commit_transaction(TIMEOUT_S)
    broker.wait_for_transaction(ID, "CompleteCommit")
    broker.clock.advance(days=6)
    assert list(broker.transactions()) == [ID]
    broker.clock.advance(days=2)
    assert broker.transactions() == {}


def test_transactions_are_shown_after_a_restart(broker: Broker) -> None:
    begun(broker, "tea")
    broker.kill()
    broker.restart()
    assert broker.transactions()[ID].is_open


def test_a_transaction_that_does_not_come_is_not_waited_for_for_ever(broker: Broker) -> None:
    with pytest.raises(TimeoutError, match=r"'nobody' was to be Ongoing, after 0\.1 s it does not exist$"):
        broker.wait_for_transaction("nobody", "Ongoing", timeout=0.1)
    begun(broker, "tea")
    with pytest.raises(TimeoutError, match=r"'shop' was to be CompleteCommit, after 0\.1 s it is Ongoing$"):
        broker.wait_for_transaction(ID, "CompleteCommit", timeout=0.1)
    with pytest.raises(ValueError, match="not 'Commited'"):
        broker.wait_for_transaction(ID, "Commited")


def test_a_broker_in_another_process_shows_no_transactions() -> None:
    with Broker(mode="process") as broker:
        with pytest.raises(NotInProcessMode):
            broker.transactions()
        with pytest.raises(NotInProcessMode):
            broker.wait_for_transaction(ID, "Ongoing")


def values(records: list[Record]) -> list[str]:
    return [(record.value or b"").decode() for record in records]
