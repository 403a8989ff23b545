"""Topics that a writer misses: created where the broker allows it, and otherwise absent without a wait."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from flowstone.client import Cluster, Refused, UnknownTopic
from flowstone.embedded import Broker
from flowstone.errors import ErrorCode


@pytest.fixture
def name() -> str:
    return f"missing-{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def strict_broker() -> Iterator[Broker]:
    with Broker(settings={"auto.create.topics.enable": "false"}) as broker:
        yield broker


def test_a_missing_topic_is_created_with_the_brokers_defaults(cluster: Cluster, topic: str, name: str):
    assert cluster.ensure_topics([topic, name]) == {topic: 2, name: 1}
    assert cluster.topics([name]) == {name: 1}


def test_a_broker_that_creates_no_topics_is_asked_once(strict_broker: Broker, name: str):
    with Cluster(strict_broker.bootstrap) as cluster, strict_broker.fault("Metadata", delay_ms=1) as asked:
        assert cluster.ensure_topics([name]) == {}
    assert asked.hits == 1


def test_a_topic_that_the_broker_is_still_creating_is_waited_for(broker: Broker, cluster: Cluster, name: str):
    with broker.fault("Metadata", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, times=2) as asked:
        assert cluster.ensure_topics([name]) == {name: 1}
    assert asked.hits == 2


def test_a_topic_that_never_appears_is_absent(
    broker: Broker, cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(UnknownTopic, "retry_s_max", 0.1)
    with broker.fault("Metadata", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        assert cluster.ensure_topics([name]) == {}


def test_a_topic_is_waited_for_if_the_broker_does_not_tell_its_settings(broker: Broker, cluster: Cluster, name: str):
    with (
        broker.fault("Metadata", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, times=1),
        broker.fault("DescribeConfigs", disconnect=True) as asked,
    ):
        assert cluster.ensure_topics([name]) == {name: 1}
    assert asked.hits == 1


def test_a_name_that_no_topic_may_have_is_refused(cluster: Cluster):
    with pytest.raises(Refused, match="topic no/name: that is no topic"):
        cluster.ensure_topics(["no/name"])
