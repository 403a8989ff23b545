"""ShareGroupHeartbeat and ShareGroupDescribe over a real socket, also after a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client

TOPIC = "t"
DEADLINE_S = 20.0
_numbers = count()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path_factory.mktemp("data")), **SETTINGS) as running:
        with running.client() as client:
            client.create_topic(TOPIC, 2)
        yield running


SETTINGS = {"offsets_topic_num_partitions": "2", "share_coordinator_state_topic_num_partitions": "2"}


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as client:
        yield client


@pytest.fixture
def group_id() -> str:
    return f"group-{next(_numbers)}"


def beat(client: Client, group_id: str, epoch: int, topics: list[str] | None = None, member_id: str = "m") -> Any:
    client.ask(6, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]))
    return client.ask(
        1,
        m.ShareGroupHeartbeatRequest(
            group_id=group_id, member_id=member_id, member_epoch=epoch, subscribed_topic_names=topics
        ),
    )


def join(client: Client, group_id: str, member_id: str = "m") -> Any:
    """Join, and send heartbeats until the member has partitions; return the last response."""
    answer = beat(client, group_id, 0, [TOPIC], member_id)
    deadline = time.monotonic() + DEADLINE_S
    while answer.assignment is None or not answer.assignment.topic_partitions:
        assert time.monotonic() < deadline, answer
        assert answer.error_code == ErrorCode.NONE, answer
        time.sleep(min(answer.heartbeat_interval_ms, 100) / 1000)
        answer = beat(client, group_id, answer.member_epoch, [TOPIC], member_id)
    return answer


def describe(client: Client, *group_ids: str) -> Any:
    return client.ask(1, m.ShareGroupDescribeRequest(group_ids=list(group_ids))).groups


def test_a_member_that_joins_soon_has_all_partitions(client: Client, group_id: str) -> None:
    answer = join(client, group_id)
    (topic,) = answer.assignment.topic_partitions
    assert list(topic.partitions) == [0, 1]
    assert answer.heartbeat_interval_ms == 5000
    (group,) = describe(client, group_id)
    assert (group.group_state, group.assignor_name) == ("Stable", "simple")
    assert [each.member_id for each in group.members] == ["m"]
    assert group.members[0].assignment.topic_partitions[0].topic_name == TOPIC


def test_a_member_that_leaves_is_gone(client: Client, group_id: str) -> None:
    join(client, group_id)
    assert beat(client, group_id, -1).member_epoch == -1
    (group,) = describe(client, group_id)
    assert (group.group_state, group.members) == ("Empty", [])


def test_an_epoch_that_was_never_given_is_fenced(client: Client, group_id: str) -> None:
    epoch = join(client, group_id).member_epoch
    answer = beat(client, group_id, epoch + 7)
    assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert str(epoch + 7) in answer.error_message


def test_groups_that_do_not_exist_or_are_of_another_type_are_not_described(client: Client) -> None:
    client.ask(
        2,
        m.OffsetCommitRequest(
            group_id="committed",
            generation_id_or_member_epoch=-1,
            topics=[
                m.OffsetCommitRequestTopic(
                    name=TOPIC, partitions=[m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
                )
            ],
        ),
    )
    groups = describe(client, "nothing", "committed")
    assert [each.error_code for each in groups] == [ErrorCode.GROUP_ID_NOT_FOUND] * 2


def test_list_groups_tells_type_and_state(client: Client, group_id: str) -> None:
    join(client, group_id)
    listed = client.ask(5, m.ListGroupsRequest(types_filter=["share"])).groups
    mine = next(each for each in listed if each.group_id == group_id)
    assert (mine.group_type, mine.group_state, mine.protocol_type) == ("share", "Stable", "share")


def test_a_member_with_absurdly_many_topics_is_refused(client: Client, group_id: str) -> None:
    answer = beat(client, group_id, 0, [f"t{index}" for index in range(10_001)])
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_while_the_feature_is_off_share_groups_are_an_unsupported_version(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), **SETTINGS) as running, running.client() as client:
        update = m.UpdateFeaturesRequestFeatureUpdate(feature="share.version", max_version_level=0, upgrade_type=2)
        assert client.ask(1, m.UpdateFeaturesRequest(feature_updates=[update])).error_code == ErrorCode.NONE
        assert beat(client, "g", 0, [TOPIC]).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert describe(client, "g")[0].error_code == ErrorCode.UNSUPPORTED_VERSION


def test_members_and_their_partitions_survive_a_restart(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), **SETTINGS) as running, running.client() as client:
        client.create_topic(TOPIC, 2)
        before = join(client, "g")
        described = describe(client, "g")
    with RunningApp(str(tmp_path), **SETTINGS) as running, running.client() as client:
        assert describe(client, "g") == described
        answer = beat(client, "g", before.member_epoch)
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, before.member_epoch)


# What operators do


def alter(client: Client, group_id: str, offsets: dict[int, int], topic: str = TOPIC) -> Any:
    partitions = [
        m.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
        for index, offset in offsets.items()
    ]
    asked = m.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
    return client.ask(0, m.AlterShareGroupOffsetsRequest(group_id=group_id, topics=[asked]))


def offsets(client: Client, group_id: str, partitions: list[int] | None = None) -> dict[int, tuple[int, int]]:
    """The start offset and the lag by partition."""
    topics = None
    if partitions is not None:
        topics = [m.DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=partitions)]
    asked = m.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)
    (group,) = client.ask(1, m.DescribeShareGroupOffsetsRequest(groups=[asked])).groups
    assert group.error_code == ErrorCode.NONE
    return {each.partition_index: (each.start_offset, each.lag) for topic in group.topics for each in topic.partitions}


def delete_offsets(client: Client, group_id: str, *topics: str) -> Any:
    asked = [m.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    return client.ask(0, m.DeleteShareGroupOffsetsRequest(group_id=group_id, topics=asked))


def delete_group(client: Client, group_id: str) -> int:
    return int(client.ask(2, m.DeleteGroupsRequest(groups_names=[group_id])).results[0].error_code)


def test_an_empty_group_is_reset_and_its_state_deleted(client: Client, group_id: str) -> None:
    join(client, group_id)
    assert offsets(client, group_id) == {0: (-1, -1), 1: (-1, -1)}
    beat(client, group_id, -1)
    (topic,) = alter(client, group_id, {0: 0}).responses
    assert [each.error_code for each in topic.partitions] == [ErrorCode.NONE]
    assert offsets(client, group_id) == {0: (0, 0), 1: (-1, -1)}
    assert offsets(client, group_id, [1]) == {1: (-1, -1)}
    (deleted,) = delete_offsets(client, group_id, TOPIC).responses
    assert deleted.error_code == ErrorCode.NONE
    assert offsets(client, group_id) == {}
    (deleted,) = delete_offsets(client, group_id, TOPIC).responses
    assert deleted.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_group_that_was_reset_to_an_offset_keeps_it_when_a_member_joins(client: Client, group_id: str) -> None:
    alter(client, group_id, {0: 0, 1: 0})
    join(client, group_id)
    assert {index: start for index, (start, _) in offsets(client, group_id).items()} == {0: 0, 1: 0}


def test_a_group_with_members_is_neither_reset_nor_deleted(client: Client, group_id: str) -> None:
    join(client, group_id)
    assert alter(client, group_id, {0: 0}).error_code == ErrorCode.NON_EMPTY_GROUP
    assert delete_offsets(client, group_id, TOPIC).error_code == ErrorCode.NON_EMPTY_GROUP
    assert delete_group(client, group_id) == ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_does_not_exist_is_made_by_a_reset_and_else_not_found(client: Client, group_id: str) -> None:
    assert delete_offsets(client, group_id, TOPIC).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert delete_group(client, group_id) == ErrorCode.GROUP_ID_NOT_FOUND
    assert offsets(client, group_id) == {}
    assert offsets(client, group_id, [0]) == {0: (-1, -1)}
    assert alter(client, group_id, {1: 0}).error_code == ErrorCode.NONE
    assert describe(client, group_id)[0].group_state == "Empty"


def test_partitions_that_do_not_exist_and_negative_offsets_are_refused_one_by_one(
    client: Client, group_id: str
) -> None:
    (topic,) = alter(client, group_id, {0: 0, 7: 0, 1: -3}).responses
    assert [each.error_code for each in topic.partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 42]
    (topic,) = alter(client, group_id, {0: 0}, "missing").responses
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_empty_group_is_deleted_with_its_state_and_begins_anew(client: Client, group_id: str) -> None:
    alter(client, group_id, {0: 0, 1: 0})
    assert delete_group(client, group_id) == ErrorCode.NONE
    assert describe(client, group_id)[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    join(client, group_id)
    assert offsets(client, group_id) == {0: (-1, -1), 1: (-1, -1)}


def test_a_topic_that_is_deleted_is_gone_from_the_group(client: Client, group_id: str) -> None:
    client.create_topic(f"{TOPIC}-{group_id}", 1)
    alter(client, group_id, {0: 0}, f"{TOPIC}-{group_id}")
    client.ask(
        6, m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name=f"{TOPIC}-{group_id}")], timeout_ms=5000)
    )
    assert offsets(client, group_id) == {}
