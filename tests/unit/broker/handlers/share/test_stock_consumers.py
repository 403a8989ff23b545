"""The share consumers of librdkafka and of Java, as their users have them, without and with key ordering."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer
from scripts.fetch_kafka import cache_folder, java_command, kafka_classpath

from flowstone.wire import messages as m
from tests.support.running_app import RunningApp

TOPIC, RECORDS, KEYS = "t", 300, 20
GROUP_RESOURCE = 32
JAVA_TOOL = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path)) as app:
        yield app


def begun(app: RunningApp, ordering: str) -> str:
    """Create the topic with records, and the group's settings; return the address of the broker."""
    with app.client() as client:
        client.create_topic(TOPIC, partitions=2)
        configs = [
            m.IncrementalAlterConfigsRequestConfig(name=name, config_operation=0, value=value)
            for name, value in (("share.ordering", ordering), ("share.auto.offset.reset", "earliest"))
        ]
        resource = m.IncrementalAlterConfigsRequestResource(
            resource_type=GROUP_RESOURCE, resource_name="g", configs=configs
        )
        client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    bootstrap = "{}:{}".format(*app.app.addresses["PLAINTEXT"])
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, key=b"%d" % (number % KEYS))
    assert producer.flush(10) == 0
    return bootstrap


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_librdkafkas_share_consumer_gets_every_record_once(app: RunningApp, ordering: str) -> None:
    consumer = ShareConsumer({"bootstrap.servers": begun(app, ordering), "group.id": "g", "log_level": 0})
    consumer.subscribe([TOPIC])
    got: list[bytes] = []
    until = time.monotonic() + 30
    while len(got) < RECORDS and time.monotonic() < until:
        got += [message.value() for message in consumer.poll(0.2) if message.error() is None]
    consumer.close()
    assert sorted(map(int, got)) == list(range(RECORDS))
    if ordering == "key":
        for key in range(KEYS):
            of_key = [int(each) for each in got if int(each) % KEYS == key]
            assert of_key == sorted(of_key)


@pytest.mark.skipif(
    shutil.which("java") is None or not cache_folder().is_dir(),
    reason="needs java and a fetched Kafka (scripts/fetch_kafka.py)",
)
@pytest.mark.parametrize("ordering", ["none", "key"])
def test_javas_share_consumer_gets_every_record_once(app: RunningApp, ordering: str) -> None:
    command = [java_command(), "-cp", kafka_classpath(), JAVA_TOOL, "--bootstrap-server", begun(app, ordering)]
    limits = ["--topic", TOPIC, "--group", "g", "--max-messages", str(RECORDS), "--timeout-ms", "30000"]
    done = subprocess.run([*command, *limits], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(map(int, done.stdout.split())) == list(range(RECORDS))
