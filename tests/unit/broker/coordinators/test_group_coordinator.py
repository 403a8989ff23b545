"""The group coordinator on a real log: its topic, its restarts, its stop."""

from __future__ import annotations

import time
from typing import Any

from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.wire_client import Client, frame

TOPIC = "t"
OFFSETS = "__consumer_offsets"
PARTITIONS = 100
OFFSETS_PARTITIONS = 5
SESSION_MS = 30_000
SOON_S = 20.0  # a broker that waits for them takes a minute


def connect(broker: Broker) -> Client:
    host, _, port = broker.bootstrap.rpartition(":")
    return Client((host, int(port)))


def begin(broker: Broker) -> Client:
    """A client of a broker that has a topic and a coordinator."""
    client = connect(broker)
    client.create_topic(TOPIC, PARTITIONS)
    assert client.ask(0, m.FindCoordinatorRequest(key="g")).error_code == ErrorCode.NONE
    return client


def commit(client: Client, group_id: str, offset: int) -> int:
    partitions = [
        m.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index in range(PARTITIONS)
    ]
    topics = [m.OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
    response = client.ask(8, m.OffsetCommitRequest(group_id=group_id, topics=topics))
    return int(response.topics[0].partitions[0].error_code)


def committed(client: Client, group_id: str) -> set[int]:
    response = client.ask(7, m.OffsetFetchRequest(group_id=group_id, topics=None))
    assert response.error_code == ErrorCode.NONE
    return {each.committed_offset for topic in response.topics for each in topic.partitions}


def join_request(group_id: str, member_id: str = "") -> m.JoinGroupRequest:
    return m.JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def join(client: Client, group_id: str) -> Any:
    return client.ask(3, join_request(group_id))


def park_join(broker: Broker, client: Client, group_id: str) -> Client:
    """A second member of the client's group, whose join waits for the first one to join again."""
    leader = join(client, group_id)
    second = connect(broker)
    second.send(frame(3, join_request(group_id)))
    heartbeat = m.HeartbeatRequest(group_id=group_id, member_id=leader.member_id, generation_id=1)
    while (error := client.ask(2, heartbeat).error_code) != ErrorCode.REBALANCE_IN_PROGRESS:
        assert error == ErrorCode.NONE
    return second


def test_the_offsets_topic_is_internal_and_compacted() -> None:
    with Broker() as broker, begin(broker) as client:
        (topic,) = client.ask(9, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=OFFSETS)])).topics
        assert (topic.error_code, topic.is_internal) == (ErrorCode.NONE, True)


def test_clients_can_neither_create_nor_enlarge_the_offsets_topic() -> None:
    settings = {"offsets.topic.num.partitions": str(OFFSETS_PARTITIONS)}
    with Broker(settings=settings) as broker, connect(broker) as client:
        assert client.create_topic(OFFSETS, partitions=1) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert client.ask(0, m.FindCoordinatorRequest(key="g")).error_code == ErrorCode.NONE
        (topic,) = client.ask(9, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=OFFSETS)])).topics
        assert len(topic.partitions) == OFFSETS_PARTITIONS
        more = m.CreatePartitionsRequestTopic(name=OFFSETS, count=OFFSETS_PARTITIONS + 1, assignments=None)
        (refused,) = client.ask(2, m.CreatePartitionsRequest(topics=[more], timeout_ms=1000)).results
        assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "offsets.topic.num.partitions" in refused.error_message


def test_asking_for_its_metadata_does_not_make_the_offsets_topic() -> None:
    with Broker() as broker, connect(broker) as client:
        (topic,) = client.ask(9, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=OFFSETS)])).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_without_its_topic_a_coordinator_knows_nothing_and_begins_anew() -> None:
    with Broker() as broker, begin(broker) as client:
        commit(client, "g", 5)
        with park_join(broker, client, "waiting") as second:
            client.ask(1, m.DeleteTopicsRequest(topic_names=[OFFSETS], timeout_ms=1000))
            assert second.receive(), "a waiting request is told"
        assert join(client, "g").error_code == ErrorCode.NOT_COORDINATOR
        assert client.ask(0, m.FindCoordinatorRequest(key="g")).error_code == ErrorCode.NONE
        assert committed(client, "g") == set()


def test_a_broker_that_stops_does_not_wait_for_members_that_wait() -> None:
    broker = Broker(settings={"shutdown.timeout.ms": "60000"})
    with begin(broker) as client, park_join(broker, client, "g") as second:
        started = time.monotonic()
        broker.stop()
        assert time.monotonic() - started < SOON_S
        assert second.receive()


def test_no_more_members_wait_than_requests_may() -> None:
    with (
        Broker(settings={"max.parked.requests": "1"}) as broker,
        begin(broker) as client,
        park_join(broker, client, "g"),
    ):
        assert join(client, "h").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
