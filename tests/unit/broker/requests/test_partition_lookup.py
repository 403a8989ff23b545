"""Which partitions a broker finds for a client, and whom it names as leaders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flowstone.broker.requests.partition_lookup import (
    NodeEndpoint,
    as_seen_by_the_cluster,
    find_led,
    find_replica,
    live_broker,
    live_brokers,
    node_endpoints,
    partition_state,
)
from flowstone.cluster.image.cluster_image import (
    EMPTY_IMAGE,
    BrokerImage,
    ClusterImage,
    Endpoint,
    PartitionImage,
    TopicImage,
)
from flowstone.cluster.image.records import BrokerRegistered, TopicCreated
from flowstone.cluster.image.replay import apply
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.replication.partition import Partition
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition
from tests.support.partitions import ON_DISK, Flusher, a_log

STATES = tuple(PartitionImage(leader, 0, 0, (1, 2), (1, 2)) for leader in (1, 2, 3))
TOPIC_ID = bytes(range(16))


def broker(node_id: int, *, is_fenced: bool = False, **listeners: Endpoint) -> BrokerImage:
    return BrokerImage(node_id, f"rack-{node_id}", listeners, is_fenced=is_fenced)


IMAGE = apply(
    EMPTY_IMAGE,
    [
        BrokerRegistered(broker(1, PLAIN=Endpoint("one", 9092), TLS=Endpoint("one", 9093))),
        BrokerRegistered(broker(2, PLAIN=Endpoint("two", 9092))),
        BrokerRegistered(broker(3, PLAIN=Endpoint("three", 9092), is_fenced=True)),
        TopicCreated("t", TOPIC_ID, STATES, {}),
    ],
)
TOPIC: TopicImage = IMAGE.topics["t"]


def code_of(error: ApiError) -> ErrorCode:
    return error.code


@pytest.fixture
def services() -> Any:
    """Broker 1 leads partition 0, follows partition 1 and cannot use partition 2."""
    partitions = Partitions()
    alone = PartitionImage(1, 0, 0, (1,), (1,))
    partitions.add(Partition(a_log(ON_DISK), Flusher(), alone, 1))
    partitions.add_offline(TopicPartition("t", 2), TOPIC_ID, StorageFault("the disk is gone"))
    return SimpleNamespace(partitions=partitions, metadata=SimpleNamespace(image=IMAGE))


@pytest.mark.parametrize(
    ("topic", "index", "code"),
    [
        ("t", 1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("t", 2, ErrorCode.KAFKA_STORAGE_ERROR),
        ("t", 3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_partition_that_is_not_here_has_the_error_of_what_the_cluster_knows(
    services: Any, topic: str, index: int, code: ErrorCode
) -> None:
    for find in (find_replica, find_led):
        with pytest.raises(ApiError) as refused:
            find(services, topic, index)
        assert refused.value.code is code


def test_a_leader_finds_its_partition_and_a_follower_finds_it_for_reads_alone(services: Any) -> None:
    partition = services.partitions.get("t", 0)
    assert find_replica(services, "t", 0) is find_led(services, "t", 0) is partition
    partition.update(PartitionImage(2, 1, 1, (1, 2), (1, 2)), 1)
    assert find_replica(services, "t", 0) is partition
    with pytest.raises(ApiError) as refused:
        find_led(services, "t", 0)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID])
def test_a_partition_that_another_broker_has_is_led_elsewhere(code: ErrorCode) -> None:
    error = ApiError(code)
    for index in (0, 2):
        assert code_of(as_seen_by_the_cluster(error, TOPIC, index)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for index in (-1, 3):
        assert as_seen_by_the_cluster(error, TOPIC, index) is error
    assert as_seen_by_the_cluster(error, None, 0) is error
    other = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert as_seen_by_the_cluster(other, TOPIC, 0) is other


def test_the_state_of_a_partition_is_found_by_the_topics_name_or_else_by_its_id() -> None:
    assert partition_state(IMAGE, "t", bytes(16), 2) is STATES[2]
    assert partition_state(IMAGE, "", TOPIC_ID, 0) is STATES[0]
    assert partition_state(IMAGE, "u", TOPIC_ID, 0) is None
    assert partition_state(IMAGE, "", bytes(16), 0) is None
    assert partition_state(IMAGE, "t", TOPIC_ID, 3) is partition_state(IMAGE, "t", TOPIC_ID, -1) is None


def test_fenced_brokers_are_not_alive() -> None:
    assert [each.node_id for each in live_brokers(IMAGE)] == [1, 2]
    assert live_broker(IMAGE, 2) is IMAGE.brokers[2]
    assert live_broker(IMAGE, 3) is live_broker(IMAGE, 4) is None


def test_the_endpoints_of_live_brokers_with_the_listener_are_named_once_in_order() -> None:
    def endpoints(image: ClusterImage, *node_ids: int, listener: str = "PLAIN") -> list[NodeEndpoint]:
        return node_endpoints(image, node_ids, listener)

    one, two = NodeEndpoint(1, "one", 9092, "rack-1"), NodeEndpoint(2, "two", 9092, "rack-2")
    assert endpoints(IMAGE, 2, 1, 2, 3, 4, -1) == [two, one]
    assert endpoints(IMAGE, 1, 2, listener="TLS") == [NodeEndpoint(1, "one", 9093, "rack-1")]
    assert endpoints(IMAGE) == []
