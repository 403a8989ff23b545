"""Transactional producers of every library: what read_committed consumers see of them, and which of two is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import confluent_kafka as ck
import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.errors import KafkaError as AiokafkaError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPythonPartition

from flowstone.embedded import Broker
from tests.clients.driver import TIMEOUT_S

POLL_S = 0.1
SOURCE_PARTITION = 0


class Fenced(Exception):
    """The library says that another producer has taken the transactional id."""


class Producer(Protocol):
    """A transactional producer, with the same few methods for every library."""

    def begin(self) -> None: ...

    def produce(self, topic: str, value: bytes) -> None:
        """Send a record, and return when it is acknowledged."""

    def send_offset(self, topic: str, offset: int, group_id: str) -> None: ...

    def end(self, *, commit: bool) -> None: ...

    def close(self) -> None: ...


class ConfluentProducer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
        self._producer.init_transactions(TIMEOUT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def produce(self, topic: str, value: bytes) -> None:
        errors: list[ck.KafkaError | None] = []
        self._producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        assert not self._producer.flush(TIMEOUT_S)
        if errors[0] is not None:
            raise Fenced(errors[0])

    def send_offset(self, topic: str, offset: int, group_id: str) -> None:
        consumer = ck.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": group_id})
        try:
            place = ck.TopicPartition(topic, SOURCE_PARTITION, offset)
            self._producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), TIMEOUT_S)
        finally:
            consumer.close()

    def end(self, *, commit: bool) -> None:
        try:
            (self._producer.commit_transaction if commit else self._producer.abort_transaction)(TIMEOUT_S)
        except ck.KafkaException as error:
            raise Fenced(error) from error

    def close(self) -> None:
        """Nothing: the library closes it with its last reference."""


class KafkaPythonProducer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def produce(self, topic: str, value: bytes) -> None:
        try:
            self._producer.send(topic, value).get(TIMEOUT_S)
        except kafka.errors.KafkaError as error:
            raise Fenced(error) from error

    def send_offset(self, topic: str, offset: int, group_id: str) -> None:
        offsets = {KafkaPythonPartition(topic, SOURCE_PARTITION): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, group_id)

    def end(self, *, commit: bool) -> None:
        try:
            (self._producer.commit_transaction if commit else self._producer.abort_transaction)()
        except kafka.errors.KafkaError as error:
            raise Fenced(error) from error

    def close(self) -> None:
        self._producer.close(TIMEOUT_S)


class AiokafkaProducer:
    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._runner = asyncio.Runner()

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
            await producer.start()
            return producer

        self._producer = self._run(start())

    def _run(self, call: Any) -> Any:
        return self._runner.run(asyncio.wait_for(call, TIMEOUT_S))

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def produce(self, topic: str, value: bytes) -> None:
        try:
            self._run(self._producer.send_and_wait(topic, value))
        except AiokafkaError as error:
            raise Fenced(error) from error

    def send_offset(self, topic: str, offset: int, group_id: str) -> None:
        offsets = {AiokafkaPartition(topic, SOURCE_PARTITION): offset}
        self._run(self._producer.send_offsets_to_transaction(offsets, group_id))

    def end(self, *, commit: bool) -> None:
        try:
            self._run(self._producer.commit_transaction() if commit else self._producer.abort_transaction())
        except AiokafkaError as error:
            raise Fenced(error) from error

    def close(self) -> None:
        self._run(self._producer.stop())
        self._runner.close()


LIBRARIES: dict[str, Callable[[str, str], Producer]] = {
    "confluent-kafka": ConfluentProducer,
    "kafka-python": KafkaPythonProducer,
    "aiokafka": AiokafkaProducer,
}


@pytest.fixture(params=LIBRARIES)
def new_producer(request: pytest.FixtureRequest, broker: Broker) -> Callable[[str], Any]:
    """Makes a producer of one library, given its transactional id, in a `with` statement."""

    @contextmanager
    def make(transactional_id: str) -> Iterator[Producer]:
        producer = LIBRARIES[request.param](broker.bootstrap, transactional_id)
        try:
            yield producer
        finally:
            producer.close()

    return make


@pytest.fixture
def topics(broker: Broker, topic_name: str) -> tuple[str, str]:
    names = f"{topic_name}-first", f"{topic_name}-second"
    for name in names:
        broker.create_topic(name, partitions=1)
    return names


def committed_values(broker: Broker, topic: str) -> list[bytes]:
    """What a read_committed consumer sees of a topic, up to its last stable offset."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
    values: list[bytes] = []
    try:
        while True:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"neither a record nor the end of the topic after {values}"
            if message.error() is not None and message.error().code() == ck.KafkaError._PARTITION_EOF:
                return values
            assert message.error() is None, message.error()
            values.append(message.value())
    finally:
        consumer.close()


def committed_offset(broker: Broker, group_id: str, topic: str) -> int:
    consumer = ck.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group_id})
    try:
        (place,) = consumer.committed([ck.TopicPartition(topic, 0)], TIMEOUT_S)
        return int(place.offset)
    finally:
        consumer.close()


def test_a_committed_transaction_is_visible_in_all_topics_with_its_offsets(
    broker: Broker, new_producer: Any, topics: tuple[str, str]
) -> None:
    with new_producer(f"{topics[0]}-tx") as producer:
        producer.begin()
        for name in topics:
            producer.produce(name, b"payment")
        producer.send_offset(topics[0], 7, f"{topics[0]}-group")
        assert [committed_values(broker, name) for name in topics] == [[], []]
        producer.end(commit=True)
        assert [committed_values(broker, name) for name in topics] == [[b"payment"], [b"payment"]]
        assert committed_offset(broker, f"{topics[0]}-group", topics[0]) == 7


def test_nothing_of_an_aborted_transaction_is_visible_and_the_producer_goes_on(
    broker: Broker, new_producer: Any, topics: tuple[str, str]
) -> None:
    with new_producer(f"{topics[0]}-tx") as producer:
        for number, commit in enumerate((True, False, False, True)):
            producer.begin()
            for name in topics:
                producer.produce(name, b"%d" % number)
            producer.send_offset(topics[0], number, f"{topics[0]}-group")
            producer.end(commit=commit)
        assert [committed_values(broker, name) for name in topics] == [[b"0", b"3"], [b"0", b"3"]]
        assert committed_offset(broker, f"{topics[0]}-group", topics[0]) == 3


def test_a_second_producer_of_the_transactional_id_fences_the_first(
    broker: Broker, new_producer: Any, topics: tuple[str, str]
) -> None:
    transactional_id = f"{topics[0]}-tx"
    with new_producer(transactional_id) as zombie:
        zombie.begin()
        zombie.produce(topics[0], b"of the first")
        with new_producer(transactional_id) as successor:
            with pytest.raises(Fenced):
                zombie.end(commit=True)
            successor.begin()
            successor.produce(topics[0], b"of the second")
            successor.end(commit=True)
        assert committed_values(broker, topics[0]) == [b"of the second"]
