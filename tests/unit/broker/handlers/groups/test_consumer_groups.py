"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over a real socket, also after a restart."""

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

TOPIC, PARTITIONS = "t", 2
DEADLINE_S = 20.0
SETTINGS = {"offsets_topic_num_partitions": "2"}
_numbers = count()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path_factory.mktemp("data")), **SETTINGS) as running:
        with running.client() as client:
            client.create_topic(TOPIC, PARTITIONS)
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as client:
        yield client


@pytest.fixture
def group_id() -> str:
    return f"group-{next(_numbers)}"


def beat(client: Client, group_id: str, epoch: int, *, version: int = 1, **fields: Any) -> Any:
    """Send a heartbeat; one that joins names the topic and has no partitions."""
    client.ask(6, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]))
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": [TOPIC], "topic_partitions": []} | fields
    request = m.ConsumerGroupHeartbeatRequest(
        **{"group_id": group_id, "member_id": "m", "member_epoch": epoch} | fields
    )
    deadline = time.monotonic() + DEADLINE_S
    while (answer := client.ask(version, request)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer


def describe(client: Client, *group_ids: str, version: int = 1) -> Any:
    return client.ask(version, m.ConsumerGroupDescribeRequest(group_ids=list(group_ids))).groups


@pytest.mark.parametrize("version", [0, 1])
def test_a_member_that_joins_gets_all_partitions(client: Client, group_id: str, version: int) -> None:
    answer = beat(client, group_id, 0, version=version)
    assert (answer.error_code, answer.member_epoch, answer.heartbeat_interval_ms) == (0, 2, 5000)
    assert [list(each.partitions) for each in answer.assignment.topic_partitions] == [[0, 1]]
    assert beat(client, group_id, 2, version=version).assignment is None
    (group,) = describe(client, group_id, version=version)
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        "Stable",
        2,
        2,
        "uniform",
    )
    (member,) = group.members
    assert member.assignment.topic_partitions[0].topic_name == TOPIC
    assert member.target_assignment == member.assignment
    assert member.member_type == (1 if version >= 1 else -1)
    assert member.client_host == "/127.0.0.1"


def test_in_version_0_the_coordinator_makes_the_member_id(client: Client, group_id: str) -> None:
    answer = beat(client, group_id, 0, version=0, member_id="")
    assert answer.error_code == ErrorCode.NONE
    assert len(answer.member_id) == 36


@pytest.mark.parametrize(
    ("epoch", "fields", "error"),
    [
        (0, {"member_id": ""}, ErrorCode.INVALID_REQUEST),
        (0, {"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        (0, {"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        (0, {"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        (0, {"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        (0, {"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        (0, {"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        (0, {"subscribed_topic_regex": "(?=a)"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (0, {"subscribed_topic_regex": "(a)\\1"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (-2, {}, ErrorCode.INVALID_REQUEST),
        (-3, {}, ErrorCode.INVALID_REQUEST),
        (1, {}, ErrorCode.GROUP_ID_NOT_FOUND),
        (-1, {}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_what_kafka_refuses_is_refused_with_kafkas_error(
    client: Client, group_id: str, epoch: int, fields: dict[str, Any], error: ErrorCode
) -> None:
    answer = beat(client, group_id, epoch, **fields)
    assert (ErrorCode(answer.error_code), bool(answer.error_message)) == (error, True)
    (group,) = describe(client, group_id)
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_is_listed_with_its_type_and_state(client: Client, group_id: str) -> None:
    beat(client, group_id, 0)
    client.ask(6, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]))
    groups = client.ask(5, m.ListGroupsRequest(types_filter=["Consumer"], states_filter=["stable"])).groups
    assert (group_id, "consumer", "Stable", "consumer") in [
        (each.group_id, each.protocol_type, each.group_state, each.group_type) for each in groups
    ]
    classic = client.ask(5, m.ListGroupsRequest(types_filter=["classic"])).groups
    assert group_id not in [each.group_id for each in classic]
    for version, error in ((5, 0), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
        (described,) = client.ask(version, m.DescribeGroupsRequest(groups=[group_id])).groups
        assert (described.group_state, described.error_code) == ("Dead", error)


def test_a_group_and_what_its_members_have_survive_a_restart(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), **SETTINGS) as app, app.client() as client:
        client.create_topic(TOPIC, PARTITIONS)
        beat(client, "g", 0)
        beat(client, "g", 0, member_id="n")
        (before,) = describe(client, "g")
    with RunningApp(str(tmp_path), **SETTINGS) as app, app.client() as client:
        beat(client, "g", 2)
        (after,) = describe(client, "g")
    assert [each.member_id for each in after.members] == [each.member_id for each in before.members]
    assert after.group_epoch == before.group_epoch
    assert after.members[0].assignment == before.members[0].assignment
