"""Decisions on branches: which topics can be branched, and what the branch takes from its source."""

from __future__ import annotations

import pytest

from flowstone.cluster.decisions.topic_branches import branch_topic, find_source
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage, PartitionImage
from flowstone.cluster.image.records import TopicCreated
from flowstone.cluster.image.replay import apply
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode

PARTITIONS = (PartitionImage(1, 4, 7, (1, 2), (1,)), PartitionImage(2, 0, 1, (2, 1), (2, 1)))
ORDERS = TopicCreated("orders", b"o" * 16, PARTITIONS, {"retention.ms": "5"})
OFFSETS = TopicCreated("__consumer_offsets", b"i" * 16, PARTITIONS[:1], {})
IMAGE = apply(EMPTY_IMAGE, [ORDERS, OFFSETS])
BRANCH_ID = b"b" * 16


def branch(image: ClusterImage, target: str, max_partitions: int = 100) -> ClusterImage:
    config = BrokerConfig(max_partitions=max_partitions)
    records, topic = branch_topic(image, find_source(image, "orders"), target, BRANCH_ID, config)
    after = apply(image, records)
    assert after.topics[target] == topic
    return after


def code_of(error: pytest.ExceptionInfo[ApiError]) -> ErrorCode:
    return error.value.code


def test_a_branch_lies_where_its_source_does_with_its_epochs_and_settings() -> None:
    topic = branch(IMAGE, "audit").topics["audit"]
    assert (topic.topic_id, topic.partitions, dict(topic.configs)) == (BRANCH_ID, PARTITIONS, {"retention.ms": "5"})


def test_a_topic_that_does_not_exist_or_is_internal_is_not_branched() -> None:
    with pytest.raises(ApiError) as unknown:
        find_source(IMAGE, "nowhere")
    assert code_of(unknown) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ApiError) as internal:
        find_source(IMAGE, "__consumer_offsets")
    assert code_of(internal) is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("target", "code"),
    [("orders", ErrorCode.TOPIC_ALREADY_EXISTS), ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION)],
)
def test_a_branch_needs_a_name_of_its_own(target: str, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        branch(IMAGE, target)
    assert code_of(refused) is code


def test_the_partitions_of_a_branch_count_towards_the_limit() -> None:
    assert IMAGE.partition_count == 3
    assert branch(IMAGE, "audit", max_partitions=5).partition_count == 5
    with pytest.raises(ApiError):
        branch(IMAGE, "audit", max_partitions=4)
