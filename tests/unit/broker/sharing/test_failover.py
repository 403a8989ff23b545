"""Share groups on three brokers: another leader of the partition continues with what is durable, and fences the old."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import flowstone
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.sharing.share_client import ACCEPT, RELEASE, Delivered, Sharer, begin, delivered, topic_id_of
from tests.support.wire_client import Client, batch_of

DEADLINE_S = 30.0
SETTINGS = {"share.coordinator.state.topic.num.partitions": "3"}
MOVING = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[flowstone.Cluster]:
    with flowstone.Cluster(brokers=3, settings=SETTINGS) as cluster:
        yield cluster


def client_of(cluster: flowstone.Cluster, node_id: int) -> Client:
    host, _, port = cluster.brokers[node_id].bootstrap.rpartition(":")
    return Client((host, int(port)), timeout_s=20)


def started(cluster: flowstone.Cluster, topic: str) -> bytes:
    """Fill the topic, made if there is none, and make the state of its share partition; return the topic's id."""
    if topic not in cluster.image.topics:
        cluster.create_topic(topic)
    with client_of(cluster, 1) as client:
        topic_id = topic_id_of(client, topic)
        asked = m.FindCoordinatorRequest(key_type=2, coordinator_keys=[str(ShareKey("g", topic_id, 0))])
        until = time.monotonic() + DEADLINE_S
        while (found := client.ask(6, asked).coordinators[0]).error_code:
            assert time.monotonic() < until
            time.sleep(0.1)
    with client_of(cluster, found.node_id) as client:
        begin(client, topic_id, start_offset=0)
    with client_of(cluster, cluster.leader(topic)) as client:
        assert client.produce(topic, batch_of(*(b"%d" % each for each in range(10)))).error_code == 0
    return topic_id


def take(member: Sharer) -> list[Delivered]:
    """What the member gets once the partition has moved."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        response = member.fetch(wait_ms=500)
        codes = {each.error_code for topic in response.responses for each in topic.partitions}
        if codes - {0}:
            assert codes <= MOVING, codes
            time.sleep(0.1)
        elif got := list(delivered(response)):
            return got
    raise AssertionError("no records")


def test_accepted_records_stay_accepted_when_the_leader_dies(cluster: flowstone.Cluster) -> None:
    topic_id = started(cluster, "dies")
    leader = cluster.leader("dies")
    with client_of(cluster, leader) as client:
        member = Sharer(client, topic_id)
        assert len(take(member)) == 10
        member.accept((0, 3), (6, 6))
    cluster.kill(leader)
    try:
        cluster.wait_for_leader("dies", other_than=leader)
        with client_of(cluster, cluster.leader("dies")) as client:
            member = Sharer(client, topic_id, "other")
            assert [each.offset for each in take(member)] == [4, 5, 7, 8, 9]
            member.accept((4, 5), (7, 9))
    finally:
        cluster.restart(leader)
    cluster.wait_in_sync("dies")


def test_a_leader_that_was_replaced_cannot_accept_any_more(cluster: flowstone.Cluster) -> None:
    topic_id = started(cluster, "replaced")
    leader = cluster.leader("replaced")
    with client_of(cluster, leader) as client:
        member = Sharer(client, topic_id)
        assert len(take(member)) == 10
        cluster.partition({leader}, {1, 2, 3} - {leader})
        try:
            cluster.wait_for_leader("replaced", other_than=leader)
            with client_of(cluster, cluster.leader("replaced")) as other_client:
                other = Sharer(other_client, topic_id, "other")
                assert [each.offset for each in take(other)] == list(range(10))
                answer = member.acknowledge((0, 9, ACCEPT))
                ((partition,),) = (topic.partitions for topic in answer.responses)
                assert partition.error_code in MOVING, partition.error_code
                other.accept((0, 9))
        finally:
            cluster.heal()
    cluster.wait_in_sync("replaced")


def test_a_leader_that_was_replaced_delivers_no_record_that_is_accepted_elsewhere(cluster: flowstone.Cluster) -> None:
    topic_id = started(cluster, "released")
    leader = cluster.leader("released")
    with client_of(cluster, leader) as client:
        member = Sharer(client, topic_id)
        assert len(take(member)) == 10
        member.acknowledge((0, 9, RELEASE))
        cluster.partition({leader}, {1, 2, 3} - {leader})
        try:
            cluster.wait_for_leader("released", other_than=leader)
            with client_of(cluster, cluster.leader("released")) as other_client:
                other = Sharer(other_client, topic_id, "other")
                assert [each.offset for each in take(other)] == list(range(10))
                other.accept((0, 9))
                response = member.fetch(wait_ms=0)
                (told,) = (each.error_code for topic in response.responses for each in topic.partitions)
                assert told in MOVING
        finally:
            cluster.heal()
    cluster.wait_in_sync("released")
