"""Logins of other people's clients, with every mechanism that they have, over TLS; and Kafka's own tool for users.

`make test` runs the quick ones; all of them with FLOWSTONE_LOGINS=all, in a minute and a half.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

import flowstone
from flowstone.config.properties import format_properties
from tests.clients.conftest import Java

TIMEOUT_S = 20
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
IS_LONG = os.environ.get("FLOWSTONE_LOGINS") == "all"
JAVA_MECHANISMS = MECHANISMS if IS_LONG else ["SCRAM-SHA-512"]
long = pytest.mark.skipif(not IS_LONG, reason="long: FLOWSTONE_LOGINS=all")
JAVA_MODULES = {"PLAIN": "plain.Plain", "SCRAM-SHA-256": "scram.Scram", "SCRAM-SHA-512": "scram.Scram"}


@pytest.fixture(scope="module")
def broker() -> Iterator[flowstone.Broker]:
    with flowstone.Broker(mode="process", security="sasl_tls", settings={"connections.max.reauth.ms": 4000}) as broker:
        for mechanism in MECHANISMS:
            for client in ("confluent", "python", "aio", "java"):
                broker.create_topic(f"{client}.{mechanism}")
        yield broker


def java_properties(broker: flowstone.Broker, mechanism: str, directory: Path) -> str:
    user, password = broker.client_config["sasl.username"], broker.client_config["sasl.password"]
    module = f"org.apache.kafka.common.security.{JAVA_MODULES[mechanism]}LoginModule"
    properties = broker.client_properties | {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
    }
    path = directory / "client.properties"
    path.write_text(format_properties(properties))
    return str(path)


def context_of(broker: flowstone.Broker) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=broker.client_properties["ssl.truststore.location"])


@long
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_logs_in(broker, mechanism):
    config = {**broker.client_config, "sasl.mechanism": mechanism}
    producer = Producer(config)
    consumer = Consumer({**config, "group.id": f"confluent.{mechanism}", "auto.offset.reset": "earliest"})
    consumer.subscribe([f"confluent.{mechanism}"])
    ends = time.monotonic() + 5  # longer than a session: both log in again
    sent = got = 0
    while time.monotonic() < ends or got < sent:
        if time.monotonic() < ends:
            producer.produce(f"confluent.{mechanism}", str(sent))
            sent += 1
        producer.poll(0.01)
        message = consumer.poll(0.01)
        got += message is not None and message.error() is None
        assert time.monotonic() < ends + TIMEOUT_S
    assert producer.flush(TIMEOUT_S) == 0
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(broker, mechanism):
    config = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_context": context_of(broker),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": broker.client_config["sasl.username"],
        "sasl_plain_password": broker.client_config["sasl.password"],
    }
    with KafkaProducer(**config) as producer:
        producer.send(f"python.{mechanism}", b"x" * 100_000).get(TIMEOUT_S)
    consumer = KafkaConsumer(
        f"python.{mechanism}", **config, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000
    )
    assert next(consumer).value == b"x" * 100_000
    consumer.close()


@long
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_logs_in_and_survives_the_end_of_its_session(broker, mechanism):
    config = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_context": context_of(broker),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": broker.client_config["sasl.username"],
        "sasl_plain_password": broker.client_config["sasl.password"],
    }

    async def exchange() -> None:
        producer = AIOKafkaProducer(**config)
        await producer.start()
        await producer.send_and_wait(f"aio.{mechanism}", b"one")
        await asyncio.sleep(4.5)  # it does not log in again: the broker closes its connection, and it makes another
        await producer.send_and_wait(f"aio.{mechanism}", b"two")
        await producer.stop()
        consumer = AIOKafkaConsumer(f"aio.{mechanism}", **config, auto_offset_reset="earliest")
        await consumer.start()
        assert [(await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value for _ in range(2)] == [b"one", b"two"]
        await consumer.stop()

    asyncio.run(exchange())


@pytest.mark.parametrize("mechanism", JAVA_MECHANISMS)
def test_kafkas_own_client_logs_in(java: Java, broker, mechanism, tmp_path):
    config = java_properties(broker, mechanism, tmp_path)
    java(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", f"java.{mechanism}", "--num-records", "2000",
        "--record-size", "1000", "--throughput", "400", "--bootstrap-server", broker.bootstrap,
        "--command-config", config,
    )  # fmt: skip
    assert len(broker.wait_for(f"java.{mechanism}", 2000, TIMEOUT_S)) == 2000


@long
def test_kafkas_tool_adds_and_removes_users(java: Java, broker, tmp_path):
    config = java_properties(broker, "SCRAM-SHA-512", tmp_path)

    def configs(*arguments: str) -> str:
        return java(
            "kafka.admin.ConfigCommand", "--bootstrap-server", broker.bootstrap, "--command-config", config, *arguments
        )

    eve = ("--entity-type", "users", "--entity-name", "eve")
    added = configs("--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=apple]", *eve)
    assert "Completed updating config for user eve" in added
    assert "SCRAM-SHA-256=iterations=8192" in configs("--describe", *eve)
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "eve", "sasl.password": "apple"}
    producer = Producer({**broker.client_config, **login})
    producer.produce("confluent.PLAIN", b"from eve")
    assert producer.flush(TIMEOUT_S) == 0
    configs("--alter", "--delete-config", "SCRAM-SHA-256", *eve)
    assert "SCRAM" not in configs("--describe", *eve)
