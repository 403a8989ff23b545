"""The virtual clock as stock clients see it, over the wire."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import flowstone
from flowstone.embedded import Broker, NotServing

TIMEOUT_S = 20
DAY_MS = 24 * 60 * 60 * 1000
# Days pass in this time, on a busy machine too.
ADVANCE_S_MAX = 2.0
SESSION_TIMEOUT_MS = 45_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    with flowstone.Broker() as broker:
        yield broker


def new_producer(broker: Broker) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def produce(producer: Producer, value: str, timestamp_ms: int | None = None) -> None:
    more = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
    producer.produce("events", value, **more)
    assert producer.flush(TIMEOUT_S) == 0


def new_consumer(broker: Broker, **more: object) -> Consumer:
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "readers", "log_level": 0}
    return Consumer({**config, "auto.offset.reset": "earliest", **more})


def test_after_seven_days_expired_records_are_gone_for_a_connected_client(broker: Broker) -> None:
    producer, consumer = new_producer(broker), new_consumer(broker)
    produce(producer, "old")
    begun = time.perf_counter()
    broker.clock.advance(days=7)
    took_s = time.perf_counter() - begun
    assert consumer.get_watermark_offsets(TopicPartition("events", 0), TIMEOUT_S) == (1, 1)
    produce(producer, "new", broker.clock.time_ms())
    consumer.assign([TopicPartition("events", 0, OFFSET_BEGINNING)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.value() == b"new"
    consumer.close()
    assert took_s < ADVANCE_S_MAX


def test_records_that_have_not_expired_stay(broker: Broker) -> None:
    produce(new_producer(broker), "young")
    broker.clock.advance(days=6, hours=23)
    assert [record.value for record in broker.records("events")] == [b"young"]


def test_clients_stay_connected_when_the_clock_leaps(broker: Broker) -> None:
    producer = new_producer(broker)
    produce(producer, "before")
    with broker.fault("ApiVersions", delay_ms=1) as connecting:  # the first request of every connection
        broker.clock.advance(days=30)
        produce(producer, "after")
    assert connecting.hits == 0


def test_a_delay_passes_with_the_clock(broker: Broker) -> None:
    broker.create_topic("events")
    producer = new_producer(broker)
    with broker.fault("Produce", delay_ms=60_000, times=1) as fault:
        producer.produce("events", "late")
        producer.poll(0)
        fault.wait()
        assert producer.flush(0.1) == 1
        broker.clock.advance(minutes=1)
        begun = time.perf_counter()
        assert producer.flush(TIMEOUT_S) == 0
        assert time.perf_counter() - begun < ADVANCE_S_MAX


def test_a_member_that_was_paused_for_too_long_loses_its_place(broker: Broker) -> None:
    broker.create_topic("events")
    consumer = new_consumer(broker, **{"session.timeout.ms": SESSION_TIMEOUT_MS})
    consumer.subscribe(["events"])
    begun = time.monotonic()
    while not consumer.assignment() and time.monotonic() - begun < TIMEOUT_S:
        consumer.poll(0.05)
    assert consumer.assignment()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with broker.fault("Heartbeat", disconnect=True), broker.fault("JoinGroup", disconnect=True):
        assert members(admin) == 1
        broker.clock.advance(milliseconds=SESSION_TIMEOUT_MS)
        assert members(admin) == 0
    consumer.close()


def members(admin: AdminClient) -> int:
    return len(admin.describe_consumer_groups(["readers"])["readers"].result(TIMEOUT_S).members)


def test_a_restart_does_not_turn_the_clock_back(broker: Broker) -> None:
    broker.clock.advance(days=3)
    broker.restart()
    assert broker.clock.time_ms() - time.time() * 1000 == pytest.approx(3 * DAY_MS, abs=5000)
    broker.kill()
    broker.restart()
    assert broker.clock.time_ms() - time.time() * 1000 == pytest.approx(3 * DAY_MS, abs=5000)


def test_the_clock_does_not_go_back(broker: Broker) -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        broker.clock.advance(hours=-1)


def test_the_clock_of_a_broker_that_stands_still_cannot_be_moved(broker: Broker) -> None:
    broker.pause()
    with pytest.raises(NotServing, match="paused"):
        broker.clock.advance(hours=1)
