"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments as clients of every version see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.cluster.image.records import PartitionChanged
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestTopic,
)

PREFERRED, UNCLEAN = 0, 1
ELECT_VERSIONS = range(3)


@pytest.fixture
def broker(make_broker: Any) -> Any:
    """Three brokers, and two partitions of a topic, both led by the second replica."""
    broker = make_broker(brokers=3)
    broker.create("t", num_partitions=2)
    for index in range(2):
        place(broker, index, PartitionImage(2, 1, 1, (1, 2), (1, 2)))
    return broker


def place(broker: Any, index: int, state: PartitionImage) -> None:
    asyncio.run(broker.metadata.append([PartitionChanged(broker.image.topics["t"].topic_id, index, state)]))


def elect(*partitions: int, election_type: int = PREFERRED) -> ElectLeadersRequest:
    topics = [ElectLeadersRequestTopicPartitions(topic="t", partitions=partitions)]
    return ElectLeadersRequest(election_type=election_type, topic_partitions=topics)


def elected(response: Any) -> list[tuple[str, int, int]]:
    return [
        (topic.topic, each.partition_id, each.error_code)
        for topic in response.replica_election_results
        for each in topic.partition_result
    ]


def reassign(*replicas: tuple[int, ...] | None, **more: Any) -> AlterPartitionReassignmentsRequest:
    partitions = [
        AlterPartitionReassignmentsRequestPartition(partition_index=index, replicas=each)
        for index, each in enumerate(replicas)
    ]
    topics = [AlterPartitionReassignmentsRequestTopic(name="t", partitions=partitions)]
    return AlterPartitionReassignmentsRequest(topics=topics, **more)


@pytest.mark.parametrize("version", ELECT_VERSIONS)
def test_the_preferred_replica_leads_again(broker: Any, version: int):
    assert elected(broker.call(version, elect(0))) == [("t", 0, ErrorCode.NONE)]
    assert [each.leader for each in broker.image.topics["t"].partitions] == [1, 2]


@pytest.mark.parametrize("version", ELECT_VERSIONS)
def test_each_partition_has_its_own_error(broker: Any, version: int):
    broker.call(version, elect(0))
    assert elected(broker.call(version, elect(0, 1, 7))) == [
        ("t", 0, ErrorCode.ELECTION_NOT_NEEDED),
        ("t", 1, ErrorCode.NONE),
        ("t", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("version", ELECT_VERSIONS)
def test_null_asks_for_all_and_tells_only_of_those_that_changed(broker: Any, version: int):
    broker.call(version, elect(1))
    assert elected(broker.call(version, ElectLeadersRequest(topic_partitions=None))) == [("t", 0, ErrorCode.NONE)]
    assert elected(broker.call(version, ElectLeadersRequest(topic_partitions=None))) == []


@pytest.mark.parametrize("version", ELECT_VERSIONS[1:])
def test_who_asks_for_any_leader_gets_one_that_is_not_in_sync(broker: Any, version: int):
    place(broker, 0, PartitionImage(-1, 2, 2, (1, 2), (9,)))
    assert elected(broker.call(version, elect(0, 1, election_type=UNCLEAN))) == [
        ("t", 0, ErrorCode.NONE),
        ("t", 1, ErrorCode.ELECTION_NOT_NEEDED),
    ]
    state = broker.image.topics["t"].partitions[0]
    assert (state.leader, state.isr) == (1, (1,))


@pytest.mark.parametrize("version", ELECT_VERSIONS[1:])
def test_an_election_of_another_kind_is_refused(broker: Any, version: int):
    response = broker.call(version, elect(0, election_type=5))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert elected(response) == [("t", 0, ErrorCode.INVALID_REQUEST)]


@pytest.mark.parametrize("version", range(2))
def test_a_partition_begins_to_move_and_is_listed(broker: Any, version: int):
    response = broker.call(version, reassign((3, 2)))
    (answer,) = response.responses[0].partitions
    assert (response.error_code, answer.partition_index, answer.error_code) == (ErrorCode.NONE, 0, ErrorCode.NONE)
    (topic,) = broker.call(0, ListPartitionReassignmentsRequest(topics=None)).topics
    (moving,) = topic.partitions
    assert (topic.name, moving.partition_index) == ("t", 0)
    assert (sorted(moving.replicas), moving.adding_replicas, moving.removing_replicas) == ([1, 2, 3], [3], [1])


@pytest.mark.parametrize("version", range(2))
def test_a_move_is_taken_back_with_null(broker: Any, version: int):
    broker.call(version, reassign((3, 2)))
    (taken_back, nothing_to_take_back) = broker.call(version, reassign(None, None)).responses[0].partitions
    assert taken_back.error_code == ErrorCode.NONE
    assert nothing_to_take_back.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert broker.call(0, ListPartitionReassignmentsRequest(topics=None)).topics == []
    assert sorted(broker.image.topics["t"].partitions[0].replicas) == [1, 2]


@pytest.mark.parametrize("version", range(2))
def test_a_wish_for_unknown_brokers_is_refused_for_itself_alone(broker: Any, version: int):
    refused, taken = broker.call(version, reassign((1, 9), (2, 1))).responses[0].partitions
    assert (refused.error_code, taken.error_code) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NONE)
    assert refused.error_message


def test_the_number_of_replicas_changes_unless_the_request_says_no(broker: Any):
    (refused,) = broker.call(1, reassign((1, 2, 3), allow_replication_factor_change=False)).responses[0].partitions
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    (taken,) = broker.call(1, reassign((1, 2, 3))).responses[0].partitions
    assert taken.error_code == ErrorCode.NONE


def test_only_those_asked_for_are_listed_and_unknown_ones_are_passed_over(broker: Any):
    broker.call(1, reassign((3, 2), (3, 1)))
    topics = [
        ListPartitionReassignmentsRequestTopic(name="t", partition_indexes=[1, 7]),
        ListPartitionReassignmentsRequestTopic(name="nothing", partition_indexes=[0]),
    ]
    listed = broker.call(0, ListPartitionReassignmentsRequest(topics=topics)).topics
    assert [(each.name, [part.partition_index for part in each.partitions]) for each in listed] == [("t", [1])]
