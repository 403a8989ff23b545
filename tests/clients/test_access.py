"""Other people's clients with rights to one topic and one group: what they may do works, and the rest is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import pytest

from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.wire import messages as m
from tests.support.acl_clients import app_with_rules, user

TIMEOUT_S = 10.0
MINE, SECRET, GROUPS = "mine", "secret", ("confluent", "kafka-python", "aiokafka")


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = str(tmp_path_factory.mktemp("data"))
    with app_with_rules(data, group_initial_rebalance_delay_ms="0") as app, user(app) as admin:
        topics = [
            m.CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1) for name in (MINE, SECRET)
        ]
        admin.ask(5, m.CreateTopicsRequest(topics=topics))
        admin.allow("bob", Op.WRITE, Kind.TOPIC, MINE)
        admin.allow("bob", Op.READ, Kind.TOPIC, MINE)
        for group in GROUPS:
            admin.allow("bob", Op.READ, Kind.GROUP, group)
        host, port = app.app.addresses["PLAINTEXT"]
        yield f"{host}:{port}"


def test_confluent_kafka(bootstrap: str) -> None:
    common = {"bootstrap.servers": bootstrap, "client.id": "bob", "log_level": 0}
    errors = []
    producer = confluent_kafka.Producer(common | {"message.timeout.ms": 5_000})
    for topic in (MINE, SECRET):
        producer.produce(topic, b"confluent", on_delivery=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT_S)
    assert sorted(error.code() if error is not None else 0 for error in errors) == [
        0,
        confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ]
    consumer = confluent_kafka.Consumer(common | {"group.id": GROUPS[0], "auto.offset.reset": "earliest"})
    consumer.subscribe([MINE])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error() is None
    consumer.close()
    stranger = confluent_kafka.Consumer(common | {"group.id": "other"})
    stranger.subscribe([MINE])
    refused = stranger.poll(TIMEOUT_S)
    assert refused is not None
    assert refused.error().code() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
    stranger.close()
    admin = confluent_kafka.admin.AdminClient(common)
    assert list(admin.list_topics(timeout=TIMEOUT_S).topics) == [MINE]


def test_kafka_python(bootstrap: str) -> None:
    common = {"bootstrap_servers": bootstrap, "client_id": "bob"}
    producer = kafka.KafkaProducer(**common, max_block_ms=3_000)
    producer.send(MINE, b"kafka-python").get(TIMEOUT_S)
    with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
        producer.send(SECRET, b"kafka-python").get(TIMEOUT_S)
    producer.close()
    reading = {**common, "auto_offset_reset": "earliest", "consumer_timeout_ms": 5_000}
    consumer = kafka.KafkaConsumer(MINE, group_id=GROUPS[1], **reading)
    assert next(consumer).value
    consumer.close()
    consumer = kafka.KafkaConsumer(MINE, group_id="other", **reading)
    with pytest.raises(kafka.errors.GroupAuthorizationFailedError):
        next(consumer)
    consumer.close()


def test_aiokafka(bootstrap: str) -> None:
    asyncio.run(_aiokafka(bootstrap))


async def _aiokafka(bootstrap: str) -> None:
    common = {"bootstrap_servers": bootstrap, "client_id": "bob"}
    producer = aiokafka.AIOKafkaProducer(**common, request_timeout_ms=5_000)
    await producer.start()
    await producer.send_and_wait(MINE, b"aiokafka")
    with pytest.raises(aiokafka.errors.TopicAuthorizationFailedError):
        await producer.send_and_wait(SECRET, b"aiokafka")
    await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(MINE, **common, group_id=GROUPS[2], auto_offset_reset="earliest")
    await consumer.start()
    assert (await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value
    await consumer.stop()
    stranger = aiokafka.AIOKafkaConsumer(SECRET, **common, group_id=GROUPS[2])
    with pytest.raises(aiokafka.errors.TopicAuthorizationFailedError):
        await _read(stranger)


async def _read(consumer: aiokafka.AIOKafkaConsumer) -> None:
    try:
        await consumer.start()
        await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
    finally:
        await consumer.stop()
