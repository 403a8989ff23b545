"""Wire faults as stock clients see them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import flowstone
from flowstone.embedded import Broker
from flowstone.errors import ErrorCode

TIMEOUT_S = 20
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with flowstone.Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"topic-{next(_numbers)}"
    broker.create_topic(name, partitions=2)
    return name


def new_producer(broker: Broker, **more: object) -> Producer:
    config = {"bootstrap.servers": broker.bootstrap, "log_level": 0, "retry.backoff.ms": 10}
    return Producer({**config, **more})


def produce(producer: Producer, topic: str, value: str) -> list[KafkaError | None]:
    """What the producer says of each delivery."""
    told: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _message: told.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    return told


def test_an_error_reaches_a_producer_that_does_not_retry_and_nothing_is_stored(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", error=ErrorCode.POLICY_VIOLATION) as fault:
        (error,) = produce(new_producer(broker), topic, "refused")
    assert error is not None
    assert error.code() == ErrorCode.POLICY_VIOLATION
    assert fault.hits == 1
    assert broker.records(topic) == []


def test_a_producer_gets_over_an_error_that_comes_once(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", error=ErrorCode.NOT_LEADER_OR_FOLLOWER, times=1) as fault:
        assert produce(new_producer(broker), topic, "stored") == [None]
    assert fault.hits == 1
    assert [record.value for record in broker.records(topic)] == [b"stored"]


def test_an_error_without_acknowledgements_closes_the_connection(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", error=ErrorCode.POLICY_VIOLATION, times=1) as fault:
        producer = new_producer(broker, acks=0)
        produce(producer, topic, "lost")
        fault.wait()
    assert broker.records(topic) == []


def test_a_lost_connection_is_made_again(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", disconnect=True, times=1) as fault:
        assert produce(new_producer(broker), topic, "stored") == [None]
    assert fault.hits == 1
    assert [record.value for record in broker.records(topic)] == [b"stored"]


def test_a_fetch_fails_in_its_partitions(broker: Broker, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "log_level": 0})
    with broker.fault("Fetch", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error().code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (message.topic(), message.partition()) == (topic, 0)
    consumer.close()


def test_metadata_fails_for_its_topics_and_still_names_the_brokers(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with broker.fault("Metadata", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        metadata = admin.list_topics(topic, TIMEOUT_S)
    assert metadata.topics[topic].error.code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert len(metadata.brokers) == 1


def test_an_admins_request_fails_for_each_thing_it_names(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with broker.fault("CreateTopics", error=ErrorCode.POLICY_VIOLATION):
        futures = admin.create_topics([NewTopic("one", 1), NewTopic("two", 1)])
        for future in futures.values():
            with pytest.raises(KafkaException, match="a fault that the test injected"):
                future.result(TIMEOUT_S)


def test_a_fault_may_concern_one_client(broker: Broker, topic: str) -> None:
    with broker.fault("Produce", error=ErrorCode.POLICY_VIOLATION, client_id="unlucky") as fault:
        assert produce(new_producer(broker), topic, "stored") == [None]
        (error,) = produce(new_producer(broker, **{"client.id": "unlucky"}), topic, "refused")
    assert error is not None
    assert fault.hits == 1


def test_faults_apply_in_the_order_they_were_made(broker: Broker, topic: str) -> None:
    first = broker.fault("Produce", error=ErrorCode.POLICY_VIOLATION, times=1)
    second = broker.fault("Produce", error=ErrorCode.INVALID_RECORD, times=1)
    producer = new_producer(broker, **{"enable.idempotence": False})
    told = [produce(producer, topic, "refused")[0] for _ in range(2)]
    assert [error.code() for error in told if error] == [ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_RECORD]
    assert produce(producer, topic, "stored") == [None]
    first.remove()
    second.remove()


def test_an_error_may_come_late(broker: Broker, topic: str) -> None:
    producer = new_producer(broker)
    with broker.fault("Produce", error=ErrorCode.POLICY_VIOLATION, delay_ms=60_000) as fault:
        told: list[KafkaError | None] = []
        producer.produce(topic, "refused", on_delivery=lambda error, _message: told.append(error))
        producer.poll(0)
        fault.wait()
        assert not told
        broker.clock.advance(minutes=1)
        assert producer.flush(TIMEOUT_S) == 0
    assert [error.code() for error in told if error] == [ErrorCode.POLICY_VIOLATION]


def test_a_connection_may_be_lost_late(broker: Broker, topic: str) -> None:
    producer = new_producer(broker)
    with broker.fault("Produce", disconnect=True, delay_ms=60_000, times=1) as fault:
        producer.produce(topic, "stored")
        producer.poll(0)
        fault.wait()
        broker.clock.advance(minutes=1)
        assert producer.flush(TIMEOUT_S) == 0
    assert len(broker.records(topic)) == 1


def test_reading_a_topic_in_the_test_meets_no_fault(broker: Broker, topic: str) -> None:
    produce(new_producer(broker), topic, "stored")
    with broker.fault("Fetch", disconnect=True) as fault:
        assert len(broker.wait_for(topic, 1)) == 1
        assert fault.hits == 0


def test_waiting_in_vain_for_a_fault_says_so(broker: Broker) -> None:
    fault = broker.fault("DeleteTopics", disconnect=True)
    with fault, pytest.raises(TimeoutError, match="DeleteTopics: disconnect; met 0 times"):
        fault.wait(timeout=0.05)


@pytest.mark.parametrize(
    ("api", "arguments", "message"),
    [
        ("Produces", {"disconnect": True}, "did you mean Produce"),
        ("Produce", {}, "an error, a delay or a disconnect"),
        ("Produce", {"error": ErrorCode.NONE}, "an error, a delay or a disconnect"),
        ("Produce", {"error": ErrorCode.POLICY_VIOLATION, "disconnect": True}, "one of the two"),
        ("Produce", {"delay_ms": -1}, "0 or more"),
        ("Produce", {"disconnect": True, "times": 0}, "1 or more"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(
    broker: Broker, api: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        broker.fault(api, **arguments)  # type: ignore[arg-type]
