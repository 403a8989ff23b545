"""Clients that stay while things change around them: what they have cached must not lead them astray."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka as ck
import pytest

from flowstone.embedded import Broker
from tests.clients.confluent_driver import ConfluentDriver
from tests.clients.driver import FETCH_WAIT_MS, TIMEOUT_S, Sent

# Short, so that a client notices within the test what it would notice within minutes.
METADATA_REFRESH_MS = 100


@pytest.fixture
def driver(broker: Broker) -> ConfluentDriver:
    return ConfluentDriver(broker.bootstrap)


def long_lived_producer(bootstrap: str) -> Callable[[str, bytes], None]:
    """A function that sends one record, always through the same producer."""
    producer = ck.Producer({"bootstrap.servers": bootstrap, "topic.metadata.refresh.interval.ms": METADATA_REFRESH_MS})

    def send(topic: str, value: bytes) -> None:
        errors: list[ck.KafkaError | None] = []
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _message: errors.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert errors == [None]

    return send


def test_a_producer_goes_on_after_its_topic_was_made_again(topic_name: str) -> None:
    """The broker creates no topics by itself: the producer asks for its topic all the time, and would bring it back."""
    with Broker(settings={"auto.create.topics.enable": "false"}) as broker:
        driver, produce = ConfluentDriver(broker.bootstrap), long_lived_producer(broker.bootstrap)
        driver.create_topic(topic_name, 1)
        produce(topic_name, b"old")
        driver.delete_topic(topic_name)
        driver.create_topic(topic_name, 1)

        produce(topic_name, b"new")

        assert [record.value for record in driver.consume_from_beginning(topic_name, 0, 1)] == [b"new"]


def test_a_consumer_that_waits_at_the_end_gets_what_comes(
    broker: Broker, driver: ConfluentDriver, topic_name: str
) -> None:
    driver.create_topic(topic_name, 1)
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": TIMEOUT_S * 1000,
        }
    )
    try:
        consumer.assign([ck.TopicPartition(topic_name, 0, 0)])
        assert consumer.poll(FETCH_WAIT_MS / 1000) is None  # nothing yet: from here on its fetch is parked
        driver.produce(topic_name, [Sent(b"late")])

        message = consumer.poll(TIMEOUT_S / 2)
        assert message is not None
        assert message.value() == b"late"
    finally:
        consumer.close()
