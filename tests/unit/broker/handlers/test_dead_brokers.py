"""What clients are told while brokers of the cluster are not alive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.cluster.image.records import BrokerFenced, PartitionChanged
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
    UnregisterBrokerRequest,
)


@pytest.fixture
def broker(make_broker: Any) -> Any:
    """Three brokers; of a topic's two partitions one is led by the second, which is dead."""
    broker = make_broker(brokers=3, offsets_topic_num_partitions="1")
    broker.create("t", num_partitions=2)
    place(broker, "t", 0, PartitionImage(1, 1, 1, (1, 2), (1,)))
    place(broker, "t", 1, PartitionImage(2, 1, 1, (2, 3), (2, 3)))
    fence(broker, 2)
    return broker


def place(broker: Any, name: str, index: int, state: PartitionImage) -> None:
    asyncio.run(broker.metadata.append([PartitionChanged(broker.image.topics[name].topic_id, index, state)]))


def fence(broker: Any, node_id: int) -> None:
    asyncio.run(broker.metadata.append([BrokerFenced(node_id, broker.image.brokers[node_id].epoch)]))


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_only_live_brokers_and_leaders(broker: Any, version: int):
    response = broker.call(version, MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
    assert [each.node_id for each in response.brokers] == [1, 3]
    led, leaderless = response.topics[0].partitions
    assert (led.error_code, led.leader_id) == (ErrorCode.NONE, 1)
    assert (leaderless.error_code, leaderless.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    if version >= 5:
        assert (led.offline_replicas, leaderless.offline_replicas) == ([2], [2])


def test_topic_partitions_are_described_with_what_is_offline(broker: Any):
    request = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequestTopic(name="t")])
    led, leaderless = broker.call(0, request).topics[0].partitions
    assert (led.leader_id, led.offline_replicas) == (1, [2])
    assert (leaderless.error_code, leaderless.offline_replicas) == (ErrorCode.LEADER_NOT_AVAILABLE, [2])


def test_the_cluster_is_described_without_the_dead_unless_they_are_asked_for(broker: Any):
    def brokers(version: int, **asked: bool) -> list[tuple[int, bool]]:
        response = broker.call(version, DescribeClusterRequest(**asked))
        return [(each.broker_id, each.is_fenced) for each in response.brokers]

    assert brokers(1) == brokers(2) == [(1, False), (3, False)]
    assert brokers(2, include_fenced_brokers=True) == [(1, False), (2, True), (3, False)]


def test_a_group_whose_coordinator_is_dead_has_none_until_another_leads(broker: Any):
    def found() -> tuple[int, int]:
        (coordinator,) = broker.call(4, FindCoordinatorRequest(coordinator_keys=["g"])).coordinators
        return coordinator.error_code, coordinator.node_id

    found()
    place(broker, "__consumer_offsets", 0, PartitionImage(2, 9, 9, (2, 3), (2, 3)))
    assert found() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    place(broker, "__consumer_offsets", 0, PartitionImage(-1, 10, 10, (2, 3), (2,)))
    assert found() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    place(broker, "__consumer_offsets", 0, PartitionImage(3, 11, 11, (2, 3), (3,)))
    assert found() == (ErrorCode.NONE, 3)


def test_a_dead_broker_without_replicas_is_unregistered(broker: Any):
    place(broker, "t", 0, PartitionImage(1, 2, 2, (1, 3), (1, 3)))
    place(broker, "t", 1, PartitionImage(3, 2, 2, (3, 1), (3, 1)))
    response = broker.call(0, UnregisterBrokerRequest(broker_id=2))
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert list(broker.image.brokers) == [1, 3]


@pytest.mark.parametrize(
    ("node_id", "code", "message"),
    [
        (1, ErrorCode.INVALID_REQUEST, "Broker 1 is alive: stop it first."),
        (2, ErrorCode.INVALID_REQUEST, "Broker 2 has replicas of 2 partition(s): move them to other brokers first."),
        (7, ErrorCode.BROKER_ID_NOT_REGISTERED, "Broker 7 is not registered."),
        (-1, ErrorCode.BROKER_ID_NOT_REGISTERED, "Broker -1 is not registered."),
    ],
)
def test_a_broker_that_is_alive_or_needed_or_unknown_is_not_unregistered(
    broker: Any, node_id: int, code: ErrorCode, message: str
):
    response = broker.call(0, UnregisterBrokerRequest(broker_id=node_id))
    assert (response.error_code, response.error_message) == (code, message)
    assert list(broker.image.brokers) == [1, 2, 3]
