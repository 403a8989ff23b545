"""A week of retention, and a minute of delay, in milliseconds of real time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import flowstone
from flowstone.errors import ErrorCode

TIMEOUT_S = 20
# Milliseconds on a quiet machine; a busy one may take its time.
REAL_S_MAX = 2.0


@pytest.fixture
def broker() -> Iterator[flowstone.Broker]:
    """A clock that leaps is no good for tests that share a broker."""
    with flowstone.Broker() as broker:
        broker.create_topic("events")
        yield broker


@pytest.fixture
def producer(broker) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap})


def test_a_record_expires_after_a_week(broker, producer):
    producer.produce("events", b"old")
    producer.flush(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    assert consumer.get_watermark_offsets(TopicPartition("events", 0), TIMEOUT_S) == (0, 1)
    begun = time.perf_counter()
    broker.clock.advance(days=7)
    assert consumer.get_watermark_offsets(TopicPartition("events", 0), TIMEOUT_S) == (1, 1)
    took_s = time.perf_counter() - begun
    print(f"7 days passed in {took_s * 1000:.1f} ms")
    consumer.close()
    assert broker.records("events") == []
    assert took_s < REAL_S_MAX


def test_a_request_is_answered_a_minute_late(broker, producer):
    with broker.fault("Produce", delay_ms=60_000, times=1) as fault:
        producer.produce("events", b"late")
        producer.poll(0)
        fault.wait()
        begun = time.perf_counter()
        broker.clock.advance(minutes=1)
        assert producer.flush(TIMEOUT_S) == 0
        took_s = time.perf_counter() - begun
    print(f"1 minute passed in {took_s * 1000:.1f} ms")
    assert took_s < REAL_S_MAX


@pytest.mark.parametrize("effect", [{"error": ErrorCode.NOT_LEADER_OR_FOLLOWER}, {"disconnect": True}], ids=str)
def test_a_producer_gets_over_one_fault(broker, producer, effect):
    with broker.fault("Produce", times=1, **effect) as fault:
        producer.produce("events", b"stored")
        assert producer.flush(TIMEOUT_S) == 0
    assert fault.hits == 1
    assert [record.value for record in broker.records("events")] == [b"stored"]


def test_a_broker_in_a_process_survives_its_kill():
    with flowstone.Broker(mode="process") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("events", b"stored")
        producer.flush(TIMEOUT_S)
        broker.kill()
        broker.restart()
        assert [record.value for record in broker.records("events")] == [b"stored"]
