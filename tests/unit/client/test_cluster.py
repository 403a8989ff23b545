"""Topics, offsets and groups' commits, asked of a running broker."""

from __future__ import annotations

import pickle
import socket

import pytest
from confluent_kafka import Consumer

from flowstone.client import (
    EARLIEST,
    LATEST,
    ClientError,
    Cluster,
    DeliveryFailed,
    GaveUp,
    ListedOffset,
    OffsetsLost,
    Refused,
    UnknownTopic,
)
from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.client.conftest import Fill


def test_topics_are_listed_with_their_partitions(cluster: Cluster, topic: str):
    assert cluster.topics([topic]) == {topic: 2}


def test_a_topic_that_does_not_exist_is_absent_and_not_created(cluster: Cluster, topic: str):
    assert cluster.topics(["nowhere", topic]) == {topic: 2}
    assert "nowhere" not in cluster.topics()


def test_internal_topics_are_listed_only_when_they_are_named(cluster: Cluster, topic: str):
    cluster.commit("internal-topics", {TopicPartition(topic, 0): 0})
    assert "__consumer_offsets" not in cluster.topics()
    assert "__consumer_offsets" in cluster.topics(["__consumer_offsets"])


def test_a_partition_starts_and_ends_where_its_log_does(cluster: Cluster, fill: Fill):
    partition = fill(3)
    assert cluster.list_offsets({partition: EARLIEST}) == {partition: ListedOffset(0, -1)}
    assert cluster.list_offsets({partition: LATEST}) == {partition: ListedOffset(30, -1)}
    assert cluster.list_offsets({partition: LATEST}, read_committed=True)[partition].offset == 30


def test_offsets_are_found_by_time(cluster: Cluster, fill: Fill):
    partition = fill(3)
    first = cluster.list_offsets({partition: 0})[partition]
    assert first.offset == 0
    assert first.timestamp_ms > 0
    assert cluster.list_offsets({partition: first.timestamp_ms + 3_600_000}) == {partition: ListedOffset(-1, -1)}


def test_offsets_of_many_partitions_are_asked_for_at_once(cluster: Cluster, fill: Fill):
    first, second = fill(1), fill(2, partition=1)
    found = cluster.list_offsets({first: LATEST, second: LATEST})
    assert {partition: each.offset for partition, each in found.items()} == {first: 10, second: 20}


def test_a_topic_that_stays_unknown_is_named_long_before_the_deadline(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(UnknownTopic, "retry_s_max", 0.1)
    with Cluster(broker.bootstrap) as cluster, pytest.raises(UnknownTopic, match="no topic nowhere"):
        cluster.list_offsets({TopicPartition("nowhere", 0): LATEST})


def test_a_partition_that_a_topic_does_not_have_is_named(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(UnknownTopic, "retry_s_max", 0.1)
    with pytest.raises(UnknownTopic, match=f"{topic} has 2 partitions, and no partition 7"):
        cluster.list_offsets({TopicPartition(topic, 7): LATEST})


def test_a_topic_that_appears_in_the_meantime_is_found(broker: Broker, cluster: Cluster, topic: str):
    with broker.fault("Metadata", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, times=2) as fault:
        assert cluster.list_offsets({TopicPartition(topic, 0): LATEST})[TopicPartition(topic, 0)].offset == 0
    assert fault.hits == 2


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_offsets_are_asked_for_again_after_an_error_that_passes(
    broker: Broker, cluster: Cluster, fill: Fill, error: ErrorCode
):
    partition = fill(1)
    with broker.fault("ListOffsets", error=error, times=2) as fault:
        assert cluster.list_offsets({partition: LATEST})[partition].offset == 10
    assert fault.hits == 2


@pytest.mark.parametrize("api", ["Metadata", "ListOffsets", "FindCoordinator", "OffsetCommit"])
def test_a_lost_connection_is_made_again(broker: Broker, cluster: Cluster, topic: str, api: str):
    partition = TopicPartition(topic, 0)
    with broker.fault(api, disconnect=True, times=1) as fault:
        cluster.list_offsets({partition: LATEST})
        cluster.commit("lost-connection", {partition: 0})
    assert fault.hits == 1


def test_a_lasting_error_is_reported_after_the_deadline(broker: Broker, topic: str):
    with (
        Cluster(broker.bootstrap, deadline_s=0.2) as cluster,
        broker.fault("ListOffsets", error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        pytest.raises(GaveUp, match=f"{topic}-0: NOT_LEADER_OR_FOLLOWER; gave up after trying for 0.2 s"),
    ):
        cluster.list_offsets({TopicPartition(topic, 0): LATEST})


def test_an_address_without_a_listener_is_reported_after_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(GaveUp, match=f"no broker answers at {address} .Connection refused."):
        Cluster(address, deadline_s=0.2).topics()


def test_any_broker_of_the_list_will_do(broker: Broker, topic: str):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with Cluster(f"{address}, {broker.bootstrap}", deadline_s=5) as cluster:
        assert cluster.topics([topic]) == {topic: 2}


def test_a_silent_address_leaves_time_for_the_others(broker: Broker, topic: str):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Cluster(f"{address}, {broker.bootstrap}", deadline_s=1) as cluster:
            assert cluster.topics([topic]) == {topic: 2}


def test_every_address_that_was_tried_is_named():
    with pytest.raises(GaveUp, match=r"127\.0\.0\.1:1 .*127\.0\.0\.1:2 "):
        Cluster("127.0.0.1:1, 127.0.0.1:2", deadline_s=0.1).topics()


def test_a_port_out_of_range_is_called_that():
    with pytest.raises(ClientError, match="there is no port 70000, ports are 1 to 65535"):
        Cluster("localhost:70000")


@pytest.mark.parametrize("bootstrap", ["", " , ", "localhost:http", "localhost:0", "localhost:70000"])
def test_what_is_no_address_is_refused_before_anything_is_asked(bootstrap: str):
    with pytest.raises(ClientError, match="HOST:PORT"):
        Cluster(bootstrap)


def test_committed_offsets_are_read_back_and_those_never_committed_are_absent(cluster: Cluster, topic: str):
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    cluster.commit("readers", {first: 7}, "batch 3")
    assert cluster.committed("readers", [first, second]) == {first: 7}
    assert cluster.committed("nobody", [first]) == {}


def test_nothing_is_committed_without_offsets(cluster: Cluster):
    cluster.commit("no-offsets", {})
    assert cluster.committed("no-offsets", []) == {}


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
@pytest.mark.parametrize("api", ["OffsetCommit", "OffsetFetch", "FindCoordinator"])
def test_a_coordinator_that_moves_or_loads_is_waited_for(
    broker: Broker, cluster: Cluster, topic: str, api: str, error: ErrorCode
):
    partition = TopicPartition(topic, 0)
    with broker.fault(api, error=error, times=1) as fault:
        cluster.commit("moving", {partition: 5})
        assert cluster.committed("moving", [partition]) == {partition: 5}
    assert fault.hits == 1


def test_a_group_with_members_keeps_its_offsets_to_itself(broker: Broker, cluster: Cluster, topic: str):
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "lively", "log_level": 0})
    try:
        member.subscribe([topic])
        while not member.assignment():
            member.poll(0.1)
        with pytest.raises(Refused, match="the group has live members"):
            cluster.commit("lively", {TopicPartition(topic, 0): 1})
    finally:
        member.close()


def test_errors_survive_the_way_to_another_process():
    partition = TopicPartition("orders", 3)
    for error in (
        OffsetsLost(partition, 5, 9),
        DeliveryFailed(partition, "too large"),
        Refused(ErrorCode.INVALID_GROUP_ID, "no name"),
        UnknownTopic("there is none"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)
