"""CreateTopics, DeleteTopics, CreatePartitions and DescribeTopicPartitions as clients of every version see them."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.cluster.decisions.configs import ConfigSource
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
)


def new_topic(name: str, **more: Any) -> CreateTopicsRequestTopic:
    return CreateTopicsRequestTopic(name=name, **{"num_partitions": -1, "replication_factor": -1, **more})


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_in_every_version(broker: Any, version: int) -> None:
    configs = [CreateTopicsRequestConfig(name="retention.ms", value="10")]
    (topic,) = broker.call(version, CreateTopicsRequest(topics=[new_topic("a", configs=configs)])).topics
    assert (topic.name, topic.error_code, topic.error_message) == ("a", ErrorCode.NONE, None)
    assert broker.image.topics["a"].configs == {"retention.ms": "10"}
    if version >= 5:
        assert (topic.num_partitions, topic.replication_factor) == (1, 1)
        shown = {config.name: config for config in topic.configs}
        assert list(shown) == sorted(shown)
        retention = shown["retention.ms"]
        assert (retention.value, retention.config_source) == ("10", ConfigSource.DYNAMIC_TOPIC_CONFIG)
        assert shown["segment.bytes"].config_source == ConfigSource.DEFAULT_CONFIG
    if version >= 7:
        assert topic.topic_id == broker.image.topics["a"].topic_id


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_that_is_refused_says_why_and_the_others_are_made(broker: Any, version: int) -> None:
    asked = [new_topic(".."), new_topic("a"), new_topic("b", num_partitions=0)]
    answered = broker.call(version, CreateTopicsRequest(topics=asked)).topics
    assert [(topic.name, topic.error_code) for topic in answered] == [
        ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.INVALID_PARTITIONS),
    ]
    assert "Topic name is invalid" in answered[0].error_message
    assert list(broker.image.topics) == ["a"]


@pytest.mark.parametrize("version", range(2, 8))
def test_validating_makes_nothing_and_finds_the_same_errors(broker: Any, version: int) -> None:
    request = CreateTopicsRequest(topics=[new_topic("a"), new_topic("a b")], validate_only=True)
    good, bad = broker.call(version, request).topics
    assert good.error_code == ErrorCode.NONE
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert not broker.image.topics


def test_replicas_are_placed_where_the_request_says(make_broker: Any) -> None:
    broker = make_broker(brokers=3)
    assignments = [
        CreateTopicsRequestAssignment(partition_index=0, broker_ids=[3, 1]),
        CreateTopicsRequestAssignment(partition_index=1, broker_ids=[2, 3]),
    ]
    (topic,) = broker.call(7, CreateTopicsRequest(topics=[new_topic("a", assignments=assignments)])).topics
    assert (topic.num_partitions, topic.replication_factor) == (2, 2)
    assert [each.replicas for each in broker.image.topics["a"].partitions] == [(3, 1), (2, 3)]


def test_no_topic_asked_for_is_no_error(broker: Any) -> None:
    assert broker.call(7, CreateTopicsRequest(topics=[])).topics == []
    assert broker.call(6, DeleteTopicsRequest(topics=[])).responses == []
    assert broker.call(3, CreatePartitionsRequest(topics=[])).results == []


@pytest.mark.parametrize("version", range(1, 6))
def test_topics_are_deleted_by_name(broker: Any, version: int) -> None:
    broker.create("a", "b")
    responses = broker.call(version, DeleteTopicsRequest(topic_names=["a", "no"])).responses
    assert [(each.name, each.error_code) for each in responses] == [
        ("a", ErrorCode.NONE),
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert list(broker.image.topics) == ["b"]


def test_topics_are_deleted_by_name_or_id_in_version_6(broker: Any) -> None:
    broker.create("a", "b")
    id_of_b = broker.image.topics["b"].topic_id
    asked = [
        DeleteTopicsRequestTopic(name="a"),
        DeleteTopicsRequestTopic(topic_id=id_of_b),
        DeleteTopicsRequestTopic(topic_id=b"?" * 16),
    ]
    responses = broker.call(6, DeleteTopicsRequest(topics=asked)).responses
    assert [(each.name, each.error_code) for each in responses] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert responses[1].topic_id == id_of_b
    assert not broker.image.topics


@pytest.mark.parametrize(
    ("version", "error"),
    [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED), (5, ErrorCode.TOPIC_DELETION_DISABLED)],
)
def test_nothing_is_deleted_where_deletion_is_off(make_broker: Any, version: int, error: ErrorCode) -> None:
    broker = make_broker(delete_topic_enable="false")
    broker.create("a")
    (response,) = broker.call(version, DeleteTopicsRequest(topic_names=["a"])).responses
    assert (response.name, response.error_code) == ("a", error)
    assert "a" in broker.image.topics


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_in_every_version(broker: Any, version: int) -> None:
    broker.create("a")
    asked = [
        CreatePartitionsRequestTopic(name="a", count=3, assignments=None),
        CreatePartitionsRequestTopic(name="no", count=3, assignments=None),
    ]
    results = broker.call(version, CreatePartitionsRequest(topics=asked)).results
    assert [(each.name, each.error_code) for each in results] == [
        ("a", ErrorCode.NONE),
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert len(broker.image.topics["a"].partitions) == 3


def test_partitions_are_placed_by_hand_or_only_tried(make_broker: Any) -> None:
    broker = make_broker(brokers=2)
    broker.create("a")
    by_hand = [CreatePartitionsRequestAssignment(broker_ids=[2])]
    asked = [CreatePartitionsRequestTopic(name="a", count=2, assignments=by_hand)]
    tried = broker.call(3, CreatePartitionsRequest(topics=asked, validate_only=True))
    assert (tried.results[0].error_code, len(broker.image.topics["a"].partitions)) == (ErrorCode.NONE, 1)
    broker.call(3, CreatePartitionsRequest(topics=asked))
    assert broker.image.topics["a"].partitions[1].leader == 2


def describe(broker: Any, *names: str, cursor: tuple[str, int] | None = None, limit: int = 2000) -> Any:
    return broker.call(
        0,
        DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequestTopic(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor and DescribeTopicPartitionsCursor(topic_name=cursor[0], partition_index=cursor[1]),
        ),
    )


def pages(broker: Any, *names: str, limit: int) -> list[list[tuple[str, int]]]:
    found, cursor = [], None
    while True:
        response = describe(broker, *names, cursor=cursor, limit=limit)
        found.append([(t.name, p.partition_index) for t in response.topics for p in t.partitions])
        if response.next_cursor is None:
            return found
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)


@pytest.mark.parametrize("limit", range(1, 9))
def test_pages_hold_every_partition_once_in_order(broker: Any, limit: int) -> None:
    broker.create("c", num_partitions=3)
    broker.create("a", num_partitions=4)
    everything = [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("c", 0), ("c", 1), ("c", 2)]
    found = pages(broker, limit=limit)
    assert [each for page in found for each in page] == everything
    assert all(len(page) <= limit for page in found)
    assert pages(broker, "a", limit=limit)[-1][-1] == ("a", 3)


def test_described_partitions_carry_what_kafkas_do(broker: Any) -> None:
    broker.create("a")
    (topic,) = describe(broker, "a").topics
    assert (topic.error_code, topic.topic_id) == (ErrorCode.NONE, broker.image.topics["a"].topic_id)
    (partition,) = topic.partitions
    assert (partition.leader_id, partition.leader_epoch, partition.replica_nodes) == (1, 0, [1])
    assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == ([], [], [])
    assert topic.topic_authorized_operations > 0


def test_topics_that_cannot_be_described_say_why(broker: Any) -> None:
    errors = {topic.name: topic.error_code for topic in describe(broker, "no", "a/b").topics}
    assert errors == {"no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION}


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1)])
def test_a_cursor_that_makes_no_sense_is_refused(broker: Any, cursor: tuple[str, int]) -> None:
    broker.create("a", "b")
    (topic,) = describe(broker, "a", cursor=cursor).topics
    assert topic.error_code == ErrorCode.INVALID_REQUEST
