"""The requests of consumer groups in every version, over a real socket: what goes in, what comes out, which errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from flowstone.wire.codec import request_encoder, response_decoder
from flowstone.wire.frames import encode_request_header
from tests.support.wire_client import CLIENT_ID, Client, frame, framed

TOPIC = "t"
METADATA = b"subscription"
ASSIGNMENT = b"assignment"
SESSION_MS = 30_000
UNKNOWN_ID = bytes(range(16))

_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with Client(_address(broker)) as client:
            client.create_topic(TOPIC, 2)
            client.ask(0, m.FindCoordinatorRequest(key="any"))
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(_address(broker)) as client:
        yield client


@pytest.fixture
def group_id() -> str:
    return f"group-{next(_numbers)}"


@pytest.fixture
def topic_id(client: Client) -> bytes:
    topic = client.ask(12, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=TOPIC)])).topics[0]
    return bytes(topic.topic_id)


def _address(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap.rpartition(":")
    return host, int(port)


@dataclass
class Joined:
    member_id: str
    generation_id: int
    response: m.JoinGroupResponse


def join_request(group_id: str, member_id: str = "", **fields: Any) -> m.JoinGroupRequest:
    protocols = [m.JoinGroupRequestProtocol(name="range", metadata=METADATA)]
    given = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS, "protocol_type": "consumer"}
    return m.JoinGroupRequest(group_id=group_id, member_id=member_id, protocols=protocols, **given | fields)


def join(client: Client, group_id: str, version: int = 9) -> Joined:
    """Joins as the versions' clients do: since 4 in two steps."""
    response = client.ask(version, join_request(group_id))
    if version >= 4:
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        response = client.ask(version, join_request(group_id, response.member_id))
    assert response.error_code == ErrorCode.NONE
    return Joined(response.member_id, response.generation_id, response)


def sync(client: Client, group_id: str, member: Joined, version: int = 5) -> m.SyncGroupResponse:
    assignment = m.SyncGroupRequestAssignment(member_id=member.member_id, assignment=ASSIGNMENT)
    response: m.SyncGroupResponse = client.ask(
        version,
        m.SyncGroupRequest(
            group_id=group_id,
            member_id=member.member_id,
            generation_id=member.generation_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[assignment],
        ),
    )
    return response


def commit_request(group_id: str, offset: int, topic_id: bytes = bytes(16), **fields: Any) -> m.OffsetCommitRequest:
    partition = m.OffsetCommitRequestPartition(
        partition_index=1, committed_offset=offset, committed_leader_epoch=0, committed_metadata="note"
    )
    topic = m.OffsetCommitRequestTopic(name=TOPIC, topic_id=topic_id, partitions=[partition])
    return m.OffsetCommitRequest(group_id=group_id, topics=[topic], **fields)


def commit_error(response: m.OffsetCommitResponse) -> int:
    return response.topics[0].partitions[0].error_code


def fetch_request(version: int, group_id: str, topic_id: bytes, partition: int = 1) -> m.OffsetFetchRequest:
    if version < 8:
        topic = m.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[partition])
        return m.OffsetFetchRequest(group_id=group_id, topics=[topic])
    many = m.OffsetFetchRequestTopics(name=TOPIC, topic_id=topic_id, partition_indexes=[partition])
    return m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id=group_id, topics=[many])])


def fetched_partition(version: int, response: m.OffsetFetchResponse) -> m.OffsetFetchResponsePartition:
    topics = response.topics if version < 8 else response.groups[0].topics
    return topics[0].partitions[0]


# Members


@pytest.mark.parametrize("version", range(10))
def test_the_first_member_to_join_leads(client: Client, group_id: str, version: int) -> None:
    member = join(client, group_id, version)
    response = member.response
    assert (response.generation_id, response.protocol_name, response.leader) == (1, "range", member.member_id)
    assert [(each.member_id, each.metadata) for each in response.members] == [(member.member_id, METADATA)]
    assert response.protocol_type == ("consumer" if version >= 7 else None)


def test_a_member_is_named_after_its_client(client: Client, group_id: str) -> None:
    assert join(client, group_id).member_id.startswith(f"{CLIENT_ID}-")


def test_a_long_client_id_makes_a_member_id_that_can_be_stored(client: Client, group_id: str) -> None:
    request = join_request(group_id)
    header = encode_request_header(11, 3, 1, "c" * 32_767)
    client.send(framed(header + b"".join(map(bytes, request_encoder(11, 3)(request)))))
    response = response_decoder(11, 3)(memoryview(client.receive()), 4)
    assert isinstance(response, m.JoinGroupResponse)
    assert response.error_code == ErrorCode.NONE
    assert len(response.member_id) < 2000
    assert sync(client, group_id, Joined(response.member_id, 1, response)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(("version", "protocol_name"), [(6, ""), (7, None)])
def test_a_refused_join_names_no_protocol(
    client: Client, group_id: str, version: int, protocol_name: str | None
) -> None:
    response = client.ask(version, join_request(group_id, session_timeout_ms=1))
    assert (response.error_code, response.protocol_name) == (ErrorCode.INVALID_SESSION_TIMEOUT, protocol_name)


@pytest.mark.parametrize("version", range(6))
def test_the_leaders_sync_gives_the_assignment(client: Client, group_id: str, version: int) -> None:
    response = sync(client, group_id, join(client, group_id), version)
    assert (response.error_code, response.assignment) == (ErrorCode.NONE, ASSIGNMENT)
    assert response.protocol_name == ("range" if version >= 5 else None)


def test_a_sync_must_name_its_protocol_since_version_5(client: Client, group_id: str) -> None:
    member = join(client, group_id)
    request = m.SyncGroupRequest(group_id=group_id, member_id=member.member_id, generation_id=1)
    assert client.ask(5, request).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.ask(4, request).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", range(5))
def test_a_heartbeat_is_answered_by_what_the_group_does(client: Client, group_id: str, version: int) -> None:
    member = join(client, group_id)
    sync(client, group_id, member)

    def error(generation_id: int) -> int:
        request = m.HeartbeatRequest(group_id=group_id, member_id=member.member_id, generation_id=generation_id)
        return int(client.ask(version, request).error_code)

    assert (error(1), error(2)) == (ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION)


@pytest.mark.parametrize("version", range(6))
def test_a_member_leaves_once(client: Client, group_id: str, version: int) -> None:
    member = join(client, group_id)
    leaving = m.LeaveGroupRequestMember(member_id=member.member_id)
    request = m.LeaveGroupRequest(group_id=group_id, member_id=member.member_id, members=[leaving])

    def error() -> int:
        response = client.ask(version, request)
        return int(response.members[0].error_code if version >= 3 else response.error_code)

    assert (error(), error()) == (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_join_that_waits_does_not_hold_up_other_connections(broker: Broker, client: Client, group_id: str) -> None:
    leader = join(client, group_id)
    sync(client, group_id, leader)
    with Client(_address(broker)) as second:
        member_id = second.ask(9, join_request(group_id)).member_id
        second.send(frame(9, join_request(group_id, member_id)))  # parked until the leader joins again
        heartbeat = m.HeartbeatRequest(group_id=group_id, member_id=leader.member_id, generation_id=1)
        while client.ask(4, heartbeat).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            pass
        again = client.ask(9, join_request(group_id, leader.member_id))
        assert {member.member_id for member in again.members} == {leader.member_id, member_id}
        assert second.receive()


def test_a_member_whose_connection_breaks_while_it_joins_is_still_a_member(
    broker: Broker, client: Client, group_id: str
) -> None:
    leader = join(client, group_id)
    sync(client, group_id, leader)
    with Client(_address(broker)) as second:
        member_id = second.ask(9, join_request(group_id)).member_id
        second.send(frame(9, join_request(group_id, member_id)))
        heartbeat = m.HeartbeatRequest(group_id=group_id, member_id=leader.member_id, generation_id=1)
        while client.ask(4, heartbeat).error_code != ErrorCode.REBALANCE_IN_PROGRESS:
            pass
    again = client.ask(9, join_request(group_id, leader.member_id))
    assert {member.member_id for member in again.members} == {leader.member_id, member_id}


# Offsets


@pytest.mark.parametrize("version", range(2, 11))
def test_a_committed_offset_is_fetched_in_every_version(
    client: Client, group_id: str, topic_id: bytes, version: int
) -> None:
    assert commit_error(client.ask(version, commit_request(group_id, 7, topic_id))) == ErrorCode.NONE
    for fetch_version in range(1, 11):
        response = client.ask(fetch_version, fetch_request(fetch_version, group_id, topic_id))
        partition = fetched_partition(fetch_version, response)
        assert (partition.committed_offset, partition.metadata, partition.error_code) == (7, "note", ErrorCode.NONE)
        assert partition.committed_leader_epoch == (0 if min(version - 1, fetch_version) >= 5 else -1)


@pytest.mark.parametrize("version", range(1, 11))
def test_nothing_is_known_of_a_group_that_never_was_and_that_is_no_error(
    client: Client, group_id: str, topic_id: bytes, version: int
) -> None:
    partition = fetched_partition(version, client.ask(version, fetch_request(version, group_id, topic_id)))
    assert (partition.committed_offset, partition.metadata, partition.error_code) == (-1, "", ErrorCode.NONE)


@pytest.mark.parametrize("version", range(2, 11))
def test_null_topics_ask_for_all_that_was_committed(
    client: Client, group_id: str, topic_id: bytes, version: int
) -> None:
    client.ask(2, commit_request(group_id, 7))
    groups = [m.OffsetFetchRequestGroup(group_id=group_id, topics=None)]
    response = client.ask(version, m.OffsetFetchRequest(group_id=group_id, topics=None, groups=groups))
    topics = response.topics if version < 8 else response.groups[0].topics
    assert [(each.partition_index, each.committed_offset) for topic in topics for each in topic.partitions] == [(1, 7)]
    if version >= 10:
        assert topics[0].topic_id == topic_id
    else:
        assert topics[0].name == TOPIC


def test_many_groups_are_fetched_at_once_since_version_8(client: Client, group_id: str) -> None:
    client.ask(2, commit_request(group_id, 7))
    groups = [m.OffsetFetchRequestGroup(group_id=each, topics=None) for each in (group_id, "unknown")]
    response = client.ask(8, m.OffsetFetchRequest(groups=groups))
    assert [(group.group_id, group.error_code, len(group.topics)) for group in response.groups] == [
        (group_id, ErrorCode.NONE, 1),
        ("unknown", ErrorCode.NONE, 0),
    ]


def test_offsets_of_what_does_not_exist_are_refused_one_by_one(client: Client, group_id: str) -> None:
    partitions = [m.OffsetCommitRequestPartition(partition_index=index) for index in (0, 2, -1)]
    topics = [m.OffsetCommitRequestTopic(name=name, partitions=partitions) for name in (TOPIC, "nowhere")]
    response = client.ask(8, m.OffsetCommitRequest(group_id=group_id, topics=topics))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [[each.error_code for each in topic.partitions] for topic in response.topics] == [
        [ErrorCode.NONE, unknown, unknown],
        [unknown, unknown, unknown],
    ]


@pytest.mark.parametrize("indexes", [(0, 1), (1, 0), (1,)])
def test_a_commit_is_answered_for_the_partitions_it_names_in_its_order(
    client: Client, group_id: str, indexes: tuple[int, ...]
) -> None:
    partitions = [m.OffsetCommitRequestPartition(partition_index=index, committed_offset=3) for index in indexes]
    topics = [m.OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
    for _ in range(2):  # the second answer is one that was kept
        response = client.ask(8, m.OffsetCommitRequest(group_id=group_id, topics=topics))
        assert [(each.partition_index, each.error_code) for each in response.topics[0].partitions] == [
            (index, ErrorCode.NONE) for index in indexes
        ]


def test_a_commit_counts_though_its_connection_breaks(broker: Broker, client: Client, group_id: str) -> None:
    with Client(_address(broker)) as second:
        second.send(frame(8, commit_request(group_id, 7)))
    while fetched_partition(7, client.ask(7, fetch_request(7, group_id, bytes(16)))).committed_offset != 7:
        pass


def test_of_a_partition_named_twice_the_last_offset_counts_and_each_has_its_own_code(
    client: Client, group_id: str
) -> None:
    offsets = ((5, ""), (6, "x" * 5_000), (7, ""))
    partitions = [
        m.OffsetCommitRequestPartition(partition_index=1, committed_offset=offset, committed_metadata=metadata)
        for offset, metadata in offsets
    ]
    topics = [m.OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
    response = client.ask(8, m.OffsetCommitRequest(group_id=group_id, topics=topics))
    codes = [each.error_code for each in response.topics[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    fetched = client.ask(7, fetch_request(7, group_id, bytes(16)))
    assert fetched_partition(7, fetched).committed_offset == 7


def test_an_unknown_topic_id_is_refused_as_such(client: Client, group_id: str) -> None:
    response = client.ask(10, commit_request(group_id, 7, UNKNOWN_ID))
    assert (response.topics[0].topic_id, commit_error(response)) == (UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID)
    fetched = client.ask(10, fetch_request(10, group_id, UNKNOWN_ID))
    assert fetched.groups[0].topics[0].topic_id == UNKNOWN_ID
    assert fetched_partition(10, fetched).error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_member_of_a_group_that_is_gone_cannot_commit(
    client: Client, group_id: str, version: int, error: ErrorCode
) -> None:
    request = commit_request(group_id, 7, member_id="m", generation_id_or_member_epoch=3)
    assert commit_error(client.ask(version, request)) == error


@pytest.mark.parametrize("retention_time_ms", [2**63 - 1, 0, -(2**63)])
def test_any_time_to_live_is_taken(client: Client, group_id: str, retention_time_ms: int) -> None:
    request = commit_request(group_id, 7, retention_time_ms=retention_time_ms)
    assert commit_error(client.ask(2, request)) == ErrorCode.NONE


def test_offsets_are_deleted_one_by_one(client: Client, group_id: str, topic_id: bytes) -> None:
    client.ask(2, commit_request(group_id, 7))
    partitions = [m.OffsetDeleteRequestPartition(partition_index=index) for index in (1, 9)]
    topics = [m.OffsetDeleteRequestTopic(name=TOPIC, partitions=partitions)]
    response = client.ask(0, m.OffsetDeleteRequest(group_id=group_id, topics=topics))
    assert [each.error_code for each in response.topics[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    partition = fetched_partition(5, client.ask(5, fetch_request(5, group_id, topic_id)))
    assert partition.committed_offset == -1


def test_offsets_of_an_unknown_group_cannot_be_deleted(client: Client, group_id: str) -> None:
    response = client.ask(0, m.OffsetDeleteRequest(group_id=group_id))
    assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_topics_offsets_are_gone(client: Client, group_id: str) -> None:
    client.create_topic("doomed")
    partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    topics = [m.OffsetCommitRequestTopic(name="doomed", partitions=[partition])]
    client.ask(8, m.OffsetCommitRequest(group_id=group_id, topics=topics))
    client.ask(1, m.DeleteTopicsRequest(topic_names=["doomed"], timeout_ms=1000))
    assert client.ask(7, m.OffsetFetchRequest(group_id=group_id, topics=None)).topics == []


# Operators


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(client: Client, group_id: str, version: int) -> None:
    sync(client, group_id, join(client, group_id))
    listed = {group.group_id: group for group in client.ask(version, m.ListGroupsRequest()).groups}
    group = listed[group_id]
    assert group.protocol_type == "consumer"
    assert group.group_state == ("Stable" if version >= 4 else "")
    assert group.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize(
    ("states", "types", "is_listed"),
    [(["stable"], [], True), (["Empty"], [], False), ([], ["Classic"], True), ([], ["consumer"], False)],
)
def test_groups_are_listed_by_state_and_type(
    client: Client, group_id: str, states: list[str], types: list[str], is_listed: bool
) -> None:
    sync(client, group_id, join(client, group_id))
    groups = client.ask(5, m.ListGroupsRequest(states_filter=states, types_filter=types)).groups
    assert (group_id in [group.group_id for group in groups]) is is_listed


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_described_with_its_members(client: Client, group_id: str, version: int) -> None:
    member = join(client, group_id)
    sync(client, group_id, member)
    request = m.DescribeGroupsRequest(groups=[group_id], include_authorized_operations=True)
    (group,) = client.ask(version, request).groups
    assert (group.error_code, group.group_id, group.group_state) == (ErrorCode.NONE, group_id, "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    (described,) = group.members
    assert (described.member_id, described.client_id, described.client_host) == (
        member.member_id,
        CLIENT_ID,
        "/127.0.0.1",
    )
    assert (described.member_metadata, described.member_assignment) == (METADATA, ASSIGNMENT)
    assert (group.authorized_operations > 0) is (version >= 3)


@pytest.mark.parametrize("version", range(7))
def test_an_unknown_group_is_dead_and_since_version_6_an_error(client: Client, group_id: str, version: int) -> None:
    (group,) = client.ask(version, m.DescribeGroupsRequest(groups=[group_id])).groups
    assert group.group_state == "Dead"
    assert group.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
    assert bool(group.error_message) is (version >= 6)


@pytest.mark.parametrize("version", range(3))
def test_only_groups_without_members_are_deleted(client: Client, group_id: str, version: int) -> None:
    join(client, group_id)
    client.ask(2, commit_request(f"{group_id}-empty", 7))
    wanted = [group_id, f"{group_id}-empty", f"{group_id}-unknown", group_id]
    results = client.ask(version, m.DeleteGroupsRequest(groups_names=wanted)).results
    assert [(result.group_id, result.error_code) for result in results] == [
        (group_id, ErrorCode.NON_EMPTY_GROUP),
        (f"{group_id}-empty", ErrorCode.NONE),
        (f"{group_id}-unknown", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


# Before there is a coordinator


@pytest.fixture(scope="module")
def stranger() -> Iterator[Client]:
    """A client of a broker that nobody has asked for a coordinator yet."""
    with Broker() as broker, Client(_address(broker)) as client:
        client.create_topic(TOPIC, 2)
        yield client


NO_COORDINATOR = ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("version", "request_"),
    [
        (5, join_request("g")),
        (3, m.SyncGroupRequest(group_id="g")),
        (3, m.HeartbeatRequest(group_id="g")),
        (3, m.LeaveGroupRequest(group_id="g")),
        (0, m.OffsetDeleteRequest(group_id="g")),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else None,
)
def test_a_member_is_sent_to_look_for_the_coordinator(stranger: Client, version: int, request_: Any) -> None:
    assert stranger.ask(version, request_).error_code == NO_COORDINATOR


def test_every_offset_is_refused_where_there_is_no_coordinator(stranger: Client) -> None:
    assert commit_error(stranger.ask(5, commit_request("g", 7))) == NO_COORDINATOR
    in_partitions = fetched_partition(1, stranger.ask(1, fetch_request(1, "g", bytes(16))))
    assert (in_partitions.committed_offset, in_partitions.error_code) == (-1, NO_COORDINATOR)
    assert stranger.ask(7, fetch_request(7, "g", bytes(16))).error_code == NO_COORDINATOR
    assert stranger.ask(8, fetch_request(8, "g", bytes(16))).groups[0].error_code == NO_COORDINATOR


def test_operators_hear_of_it_for_each_group(stranger: Client) -> None:
    assert stranger.ask(5, m.DescribeGroupsRequest(groups=["g"])).groups[0].error_code == NO_COORDINATOR
    assert stranger.ask(2, m.DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == NO_COORDINATOR
    assert stranger.ask(5, m.ListGroupsRequest()).groups == []
