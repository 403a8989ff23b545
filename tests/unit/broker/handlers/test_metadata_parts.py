"""A long answer put together from parts is the answer that would be made at once, and its parts are used again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowstone.broker.handlers import metadata
from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.broker.topics import encoded_topics
from flowstone.broker.topics.encoded_topics import FORMS_MAX
from flowstone.errors import ErrorCode
from flowstone.wire.apis import APIS
from flowstone.wire.messages import DeleteTopicsRequest, MetadataRequest, MetadataRequestTopic

METADATA = APIS[3]
VERSIONS = range(14)
NEVER = 1 << 30
LISTENERS = ["PLAINTEXT", "INSIDE", "UNKNOWN"]


def all_topics(version: int, **more: Any) -> MetadataRequest:
    return MetadataRequest(topics=() if version == 0 else None, **more)


@pytest.fixture
def parts_from(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how many partitions make an answer a long one."""
    return lambda count: monkeypatch.setattr(metadata, "PARTS_PARTITIONS_MIN", count)


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics_are_told_as_without_parts(make_broker: Any, parts_from: Any, version: int, listener: str) -> None:
    broker = make_broker(brokers=2)
    broker.create("a", "b", num_partitions=3)
    broker.create(*(f"c{number}" for number in range(150)))
    more = {"include_topic_authorized_operations": True} if version >= 8 else {}
    parts_from(NEVER)
    expected = broker.call(version, all_topics(version, **more), listener)
    parts_from(1)
    for _ in range(2):
        assert broker.call(version, all_topics(version, **more), listener) == expected


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_named_topics_are_told_as_without_parts(broker: Any, parts_from: Any, version: int) -> None:
    broker.create("a", "b", num_partitions=3)
    more = {"include_topic_authorized_operations": True} if version >= 8 else {}
    named = [MetadataRequestTopic(name=name) for name in ("b", "missing", "a", "not a name")]
    request = MetadataRequest(topics=named, allow_auto_topic_creation=False, **more)
    parts_from(NEVER)
    expected = broker.call(version, request)
    parts_from(1)
    assert broker.call(version, request) == expected


def test_a_topic_that_is_made_grown_or_deleted_is_told_anew(broker: Any, parts_from: Any) -> None:
    parts_from(1)
    broker.create("a", "b")
    assert [topic.name for topic in broker.call(9, all_topics(9)).topics] == ["a", "b"]
    broker.create("c", num_partitions=5)
    topics = broker.call(9, all_topics(9)).topics
    assert [(topic.name, len(topic.partitions)) for topic in topics] == [("a", 1), ("b", 1), ("c", 5)]
    broker.call(3, DeleteTopicsRequest(topic_names=["b"]))
    assert [topic.name for topic in broker.call(9, all_topics(9)).topics] == ["a", "c"]


def test_a_topic_is_described_once_for_many_answers(
    broker: Any, parts_from: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[str] = []
    describe = encoded_topics.describe

    def counted(image: Any, topic: Any, form: Any) -> Any:
        described.append(topic.name)
        return describe(image, topic, form)

    monkeypatch.setattr(encoded_topics, "describe", counted)
    parts_from(1)
    broker.create("a", "b")
    for _ in range(3):
        broker.call(9, all_topics(9))
        broker.call(9, MetadataRequest(topics=[MetadataRequestTopic(name="b")]))
    broker.create("c")
    broker.call(9, all_topics(9))
    assert described == ["a", "b", "c"]


def test_parts_are_kept_for_so_many_forms_at_most(broker: Any, parts_from: Any) -> None:
    parts_from(1)
    broker.create("a")
    for version in VERSIONS:
        broker.call(version, all_topics(version))
    assert len(broker.services.metadata_parts._forms) == FORMS_MAX


def test_error_codes_within_the_parts_are_counted(make_broker: Any, parts_from: Any) -> None:
    broker = make_broker()
    broker.create("a", num_partitions=3)
    parts_from(1)
    context = broker.context(METADATA.key, 9, "UNKNOWN")
    response = asyncio.run(metadata.handle(broker.services, context, all_topics(9)))
    assert isinstance(response, EncodedResponse)
    assert response.errors == {ErrorCode.LISTENER_NOT_FOUND: 3}
    counted = broker.services.metrics.request("Metadata")
    counted.answered(response, 1, 0.0)
    assert counted.errors == {ErrorCode.LISTENER_NOT_FOUND: 3}


def test_others_have_their_turn_while_many_partitions_are_described(
    broker: Any, parts_from: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded_topics, "SLICE_PARTITIONS", 10)
    parts_from(1)
    broker.create(*(f"t{number}" for number in range(100)))

    async def run() -> None:
        asking = asyncio.ensure_future(broker.ask(9, all_topics(9)))
        turns = 0
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 20

    asyncio.run(run())
