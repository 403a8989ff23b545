"""The libraries here ask with old, middle and new versions: that is what makes them worth running side by side.

A library that is upgraded may move on to newer versions, and the old ones would go untested without anybody noticing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.embedded import Broker
from tests.clients.conftest import DRIVERS, Java
from tests.clients.driver import Sent
from tests.clients.recorder import HOST, Recorder

PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, INIT_PRODUCER_ID = 0, 1, 2, 3, 19, 22
# The first version of each with compact strings and tagged fields.
FLEXIBLE_SINCE = {PRODUCE: 9, FETCH: 12, LIST_OFFSETS: 6, METADATA: 9, CREATE_TOPICS: 5, INIT_PRODUCER_ID: 2}

Versions = dict[int, set[int]]


@contextmanager
def recorded() -> Iterator[tuple[str, Versions]]:
    """An address to find a fresh broker at, and what is seen of those who do, by API key."""
    with (
        Recorder() as recorder,
        Broker(settings={"advertised.listeners": f"PLAINTEXT://{HOST}:{recorder.port}"}) as broker,
    ):
        recorder.target_port = int(broker.bootstrap.rpartition(":")[2])
        yield f"{HOST}:{recorder.port}", recorder.seen


@pytest.fixture(scope="module")
def seen() -> dict[str, Versions]:
    """By library, the versions it used to create a topic, fill it and read it."""
    seen: dict[str, Versions] = {}
    for kind in DRIVERS:
        with recorded() as (address, seen[kind.name]):
            client = kind(address)
            client.create_topic("topic", 1)
            client.produce("topic", [Sent(b"value")], idempotent=True)
            assert len(client.consume_from_beginning("topic", 0, 1)) == 1
            client.close()
    return seen


def test_aiokafka_asks_with_versions_from_before_compact_strings(seen: dict[str, Versions]) -> None:
    assert {key: max(seen["aiokafka"][key]) < first for key, first in FLEXIBLE_SINCE.items()} == dict.fromkeys(
        FLEXIBLE_SINCE, True
    )


def test_librdkafka_asks_with_compact_strings_but_names_topics_in_produce(seen: dict[str, Versions]) -> None:
    used = seen["confluent-kafka"]

    assert used[PRODUCE] == {10}
    assert used[FETCH] == {16}


def test_kafka_python_names_topics_in_fetches_with_compact_strings(seen: dict[str, Versions]) -> None:
    assert seen["kafka-python"][FETCH] == {12}


def test_the_java_client_asks_with_the_newest_versions(java: Java) -> None:
    with recorded() as (address, used):
        java("org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", address, "--topic", "topic", input="x\n")
        told = java(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", address, "--topic", "topic",
            "--partition", "0", "--offset", "earliest", "--max-messages", "1",
        )  # fmt: skip

    assert told.splitlines()[0] == "x"
    assert used[PRODUCE] == {ENDPOINTS[PRODUCE].max_version}
    assert used[FETCH] == {ENDPOINTS[FETCH].max_version}
    assert used[METADATA] == {ENDPOINTS[METADATA].max_version}
