"""Stored positions of sources whose topic was deleted and created again since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from flowstone.embedded import Broker
from flowstone.pipeline.engine.starting import start_positions
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import Format, FormatKind, PipelineModel, Source, TopicSource
from flowstone.pipeline.operations.ranges import pin
from flowstone.types import topic_ids_among

_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"orders-{next(_numbers)}"
    create(broker, name, 2)
    return name


def create(broker: Broker, name: str, count: int) -> None:
    broker.create_topic(name, partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(name, str(number))
    assert producer.flush(10) == 0


def recreate(broker: Broker, name: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics([name])[name].result(10)
    create(broker, name, count)


def pipeline(broker: Broker, topic: str, **options: str) -> PipelineModel:
    origin = TopicSource((topic,), Format(FormatKind.RAW), starting="latest", options=options)
    return PipelineModel("shop", Path("."), (Source("orders", origin),), (), (), bootstrap=broker.bootstrap)


def positions(model: PipelineModel, stored: dict[str, str] | None = None) -> dict[str, str]:
    return start_positions(model, model.sources, stored)


def test_a_source_does_not_start_at_offsets_of_the_old_topic(broker: Broker, topic: str) -> None:
    model = pipeline(broker, topic)
    stored = positions(model)
    assert json.loads(stored["orders"])[topic] == {"0": 2}
    assert positions(model, stored) == stored
    recreate(broker, topic, 5)
    with pytest.raises(PipelineError) as refused:
        positions(model, stored)
    assert f"source orders: topic {topic} was deleted and created again" in str(refused.value)
    assert "flowstone pipeline reset --to earliest" in str(refused.value)


def test_a_source_that_may_lose_records_starts_at_the_beginning_of_the_new_topic(broker: Broker, topic: str) -> None:
    model = pipeline(broker, topic, failOnDataLoss="false")
    stored = positions(model)
    recreate(broker, topic, 5)
    found = positions(model, stored)
    assert json.loads(found["orders"])[topic] == {"0": 0}
    assert positions(model, found) == found


def test_positions_of_an_older_release_get_the_ids(broker: Broker, topic: str) -> None:
    model = pipeline(broker, topic)
    found = positions(model, {"orders": json.dumps({topic: {"0": 1}})})
    assert json.loads(found["orders"])[topic] == {"0": 1}
    recreate(broker, topic, 5)
    with pytest.raises(PipelineError, match="deleted and created again"):
        positions(model, found)


def test_pinned_ranges_are_those_of_their_topic_in_every_chunk(broker: Broker, topic: str) -> None:
    pinned = pin(pipeline(broker, topic), "earliest", "latest")["orders"]
    ids = [topic_ids_among(json.loads(each.as_range().starting)) for each in (pinned, *pinned.chunks(1))]
    assert len(ids) == 3
    assert all(each == pinned.topic_ids for each in ids)
    assert set(pinned.topic_ids) == {topic}
