from __future__ import annotations

from dataclasses import replace
from typing import Any

from flowstone.broker.http.pages.event_feed import metadata_events
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, BrokerImage, ClusterImage, PartitionImage
from flowstone.cluster.image.records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerUnregistered,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from flowstone.cluster.image.replay import apply

ID = b"i" * 16
STATE = PartitionImage(leader=1, leader_epoch=0, partition_epoch=0, replicas=(1, 2), isr=(1, 2))
BROKERS = [BrokerRegistered(BrokerImage(node_id, None, {}, epoch=node_id)) for node_id in (1, 2)]
IMAGE = apply(EMPTY_IMAGE, [*BROKERS, TopicCreated("t", ID, (STATE, STATE), {})])


def events(*records: MetadataRecord, before: ClusterImage = IMAGE) -> list[tuple[str, dict[str, Any]]]:
    return [tuple(event) for event in metadata_events(before, apply(before, records), records)]  # type: ignore[misc]


def test_a_new_topic_is_one_event() -> None:
    created = TopicCreated("new", b"n" * 16, (STATE,) * 3, {})
    assert events(created) == [("topic_created", {"topic": "new", "partitions": 3})]


def test_a_deleted_topic_is_told_by_its_name() -> None:
    assert events(TopicDeleted(ID)) == [("topic_deleted", {"topic": "t"})]


def test_a_topic_that_comes_and_goes_in_one_change_is_not_told() -> None:
    assert events(TopicCreated("new", b"n" * 16, (STATE,), {}), TopicDeleted(b"n" * 16)) == []


def test_added_partitions_are_told_with_their_new_count() -> None:
    assert events(PartitionsAdded(ID, (STATE,))) == [("partitions_added", {"topic": "t", "partitions": 3})]


def test_changed_settings_of_a_topic_are_told_whole() -> None:
    expected = {"topic": "t", "configs": {"retention.ms": "1"}}
    assert events(TopicConfigChanged(ID, {"retention.ms": "1"})) == [("topic_configs_changed", expected)]


def test_a_new_leader_is_told_with_its_epoch() -> None:
    changed = PartitionChanged(ID, 1, replace(STATE, leader=2, leader_epoch=1, partition_epoch=1))
    expected = {"topic": "t", "partition": 1, "leader": 2, "leader_epoch": 1}
    assert events(changed) == [("leader_changed", expected)]


def test_a_replica_that_is_no_longer_in_sync_is_told() -> None:
    changed = PartitionChanged(ID, 0, replace(STATE, isr=(1,), partition_epoch=1))
    expected = {"topic": "t", "partition": 0, "replicas": [1, 2], "in_sync": [1]}
    assert events(changed) == [("replicas_changed", expected)]


def test_a_broker_is_online_then_fenced_then_unregistered() -> None:
    joined = BrokerRegistered(BrokerImage(3, None, {}, epoch=3))
    records: list[MetadataRecord] = [joined, BrokerFenced(3, 3), BrokerUnregistered(3, 3)]
    told = []
    for n in range(3):
        told += events(records[n], before=apply(IMAGE, records[:n]))
    states = ("online", "fenced", "unregistered")
    assert told == [("broker_changed", {"broker": 3, "state": state}) for state in states]


def test_a_new_controller_is_told() -> None:
    assert events(ControllerElected(2, 1)) == [("controller_changed", {"controller": 2})]
