"""Branches of topics as clients meet them: over HTTP, and as topics like any other."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.coordinators.group_coordinator import GroupCoordinator
from flowstone.broker.http import routes
from flowstone.broker.http.pages import branch as branch_page
from flowstone.broker.topics import branching, offset_copies
from flowstone.cluster.image.ids import parse_id
from flowstone.embedded import Broker
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.types import TopicPartition
from flowstone.wire.messages import DeleteTopicsRequest, DeleteTopicsRequestTopic
from flowstone.wire.record_batch import Record, build_batch, decode_records
from tests.support.group_commits import commit
from tests.support.polling_member import PollingMember
from tests.support.running_app import TIMEOUT_S, RunningApp, get
from tests.support.wire_client import Client, batch_of, fetch_request, whole_batches

ORDERS, DEV = "orders", "orders-dev"
START_MS = 1_700_000_000_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0", offsets_topic_num_partitions="2") as running:
        yield running


@pytest.fixture
def client(broker: RunningApp) -> Iterator[Client]:
    with broker.client() as client:
        yield client


def post(broker: RunningApp, body: bytes, content_type: str = "application/json") -> tuple[int, Any]:
    assert broker.app.http_address is not None
    return post_to(broker.app.http_address, body, content_type)


def post_to(address: str, body: bytes, content_type: str = "application/json") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/branch", body, {"Content-Type": content_type})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def branch(
    broker: RunningApp, target: str = DEV, *, source: str = ORDERS, time_ms: int | None = None, groups: bool = False
) -> tuple[int, Any]:
    cluster_id = broker.app._logs.identity.cluster_id
    asked = {"cluster_id": cluster_id, "source": source, "target": target, "time_ms": time_ms, "groups": groups}
    return post(broker, json.dumps(asked).encode())


def values(client: Client, topic: str, partition: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = 0
    while True:
        request = fetch_request(topic, offset)
        request.topics[0].partitions[0].partition = partition
        data = client.ask(11, request).responses[0].partitions[0].records
        if not data:
            return found
        for batch in whole_batches(bytes(data)):
            records = decode_records(batch)
            found += [record.value for record in records if record.offset >= offset]
            offset = records[-1].offset + 1


def produce_at(client: Client, *times_ms: int, topic: str = ORDERS) -> None:
    """One batch; each record's value is its time."""
    records = [Record(i, time_ms, None, str(time_ms).encode()) for i, time_ms in enumerate(times_ms)]
    assert client.produce(topic, build_batch(records)).error_code == 0


def test_a_branch_is_a_topic_with_the_records_and_settings_of_its_source(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS, 2, **{"retention.ms": "-1"})
    client.produce(ORDERS, batch_of(b"a", b"b"))
    client.produce(ORDERS, batch_of(b"c"), partition=1)
    status, made = branch(broker)
    assert status == 200
    assert [each["next_offset"] for each in made["partitions"]] == [2, 1]
    assert values(client, DEV) == [b"a", b"b"]
    assert values(client, DEV, 1) == [b"c"]
    image = broker.app._metadata.image
    assert image.topics[DEV].configs == image.topics[ORDERS].configs == {"retention.ms": "-1"}
    assert image.topics[DEV].topic_id == parse_id(made["topic_id"])


def test_neither_side_sees_what_is_written_to_the_other(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    client.produce(ORDERS, batch_of(b"before"))
    branch(broker)
    client.produce(ORDERS, batch_of(b"to the source"))
    client.produce(DEV, batch_of(b"to the branch"))
    assert values(client, ORDERS) == [b"before", b"to the source"]
    assert values(client, DEV) == [b"before", b"to the branch"]


def test_a_branch_at_a_time_ends_before_the_first_record_at_or_after_it(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    produce_at(client, START_MS, START_MS + 10, START_MS + 20)
    produce_at(client, START_MS + 30)
    assert branch(broker, time_ms=START_MS + 11)[0] == 200
    assert values(client, DEV) == [str(START_MS).encode(), str(START_MS + 10).encode()]


def test_a_branch_at_a_time_after_the_last_record_is_a_branch_as_of_now(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    produce_at(client, START_MS)
    _status, made = branch(broker, time_ms=START_MS + 1)
    assert made["partitions"][0]["copied_bytes"] == 0
    assert values(client, DEV) == [str(START_MS).encode()]


def test_a_branch_of_a_topic_nobody_has_written_to_is_empty(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    assert branch(broker)[0] == 200
    client.produce(DEV, batch_of(b"first"))
    assert values(client, DEV) == [b"first"]
    assert values(client, ORDERS) == []


def test_a_very_wide_topic_is_branched_in_several_turns(
    broker: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branching, "ROLLS_PER_SLICE", 2)
    client.create_topic(ORDERS, 5)
    for partition in range(5):
        client.produce(ORDERS, batch_of(b"%d" % partition), partition=partition)
    assert branch(broker)[0] == 200
    assert [values(client, DEV, partition) for partition in range(5)] == [[b"%d" % each] for each in range(5)]


def test_a_producer_goes_on_in_the_branch_with_the_id_it_has(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    mine = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    assert client.produce(ORDERS, batch_of(b"a", **mine)).error_code == 0
    branch(broker)
    # Sequences are counted per topic and partition: the same one is no repetition here.
    assert client.produce(DEV, batch_of(b"b", **mine)).error_code == 0
    assert values(client, DEV) == [b"a", b"b"]


def test_a_branch_outlives_its_source_and_a_restart(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0") as broker, broker.client() as client:
        client.create_topic(ORDERS)
        client.produce(ORDERS, batch_of(b"a"))
        branch(broker)
        client.ask(6, DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name=ORDERS)], timeout_ms=1000))
        client.produce(DEV, batch_of(b"b"))
    with RunningApp(str(tmp_path)) as broker, broker.client() as client:
        assert values(client, DEV) == [b"a", b"b"]


def test_a_name_that_was_just_deleted_can_be_branched_to(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    client.produce(ORDERS, batch_of(b"a"))
    for _ in range(3):
        assert branch(broker)[0] == 200
        client.ask(6, DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name=DEV)], timeout_ms=1000))


def committed(broker: RunningApp, group_id: str) -> dict[TopicPartition, int | None]:
    status = broker.run(broker.app.survey.group(group_id))
    assert status is not None
    return {TopicPartition(each.topic, each.partition): each.committed_offset for each in status.partitions}


def test_group_offsets_come_with_the_branch_as_far_as_it_reaches(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    produce_at(client, START_MS, START_MS + 1, START_MS + 2)
    commit(client, "slow", ORDERS, 1)
    commit(client, "fast", ORDERS, 3)
    _status, made = branch(broker, time_ms=START_MS + 2, groups=True)
    assert made["groups"] == ["fast", "slow"]
    assert committed(broker, "slow")[TopicPartition(DEV, 0)] == 1
    assert committed(broker, "fast")[TopicPartition(DEV, 0)] == 2
    assert committed(broker, "fast")[TopicPartition(ORDERS, 0)] == 3


def test_group_offsets_stay_behind_unless_asked_for(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    produce_at(client, START_MS)
    commit(client, "g", ORDERS, 1)
    assert branch(broker)[1]["groups"] == []
    assert list(committed(broker, "g")) == [TopicPartition(ORDERS, 0)]


def test_a_branch_whose_group_offsets_cannot_be_copied_leaves_nothing(
    broker: RunningApp, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(ORDERS)
    produce_at(client, START_MS)
    commit(client, "g", ORDERS, 1)

    def fail(_groups: object, _request: object) -> None:
        # A crash here must not leave offsets to whatever topic has that name one day.
        assert DEV in broker.app._metadata.image.topics
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    with monkeypatch.context() as patched:
        patched.setattr(GroupCoordinator, "request_each", fail)
        assert branch(broker, groups=True)[1]["error"] == "COORDINATOR_LOAD_IN_PROGRESS"
    assert DEV not in broker.app._metadata.image.topics
    assert list(committed(broker, "g")) == [TopicPartition(ORDERS, 0)]
    assert branch(broker, groups=True)[1]["groups"] == ["g"]


def test_offsets_are_copied_in_parts(broker: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_copies, "OFFSETS_AT_ONCE", 2)
    client.create_topic(ORDERS, 5)
    client.create_topic("other")
    for partition in range(5):
        assert client.produce(ORDERS, batch_of(b"x"), partition=partition).error_code == 0
    commit(client, "all", ORDERS, *[1] * 5)
    groups = [f"g{number}" for number in range(6)]
    for group in groups:
        commit(client, group, ORDERS, 1)
    commit(client, "elsewhere", "other", 0)
    assert branch(broker, groups=True)[1]["groups"] == ["all", *groups]
    assert committed(broker, "g5") == {TopicPartition(ORDERS, 0): 1, TopicPartition(DEV, 0): 1}
    everywhere = committed(broker, "all")
    assert [everywhere[TopicPartition(DEV, index)] for index in range(5)] == [1] * 5


def test_a_group_with_members_keeps_them_and_has_its_offsets_branched() -> None:
    with Broker(http=True, settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        broker.create_topic(ORDERS, partitions=1)
        member = PollingMember(broker, "live", ORDERS)
        try:
            before = broker.wait_for_group("live", members=1)
            assert broker.http is not None
            address = broker.http.removeprefix("http://")
            cluster_id = json.loads(get(address, "/groups")[1])["cluster_id"]
            asked = {"cluster_id": cluster_id, "source": ORDERS, "target": DEV, "time_ms": None, "groups": True}
            assert post_to(address, json.dumps(asked).encode())[0] == 200
            assert broker.groups()["live"].members == before.members
            assert broker.groups()["live"].generation == before.generation
        finally:
            member.leave()


# FetchErrorLog


def test_a_topic_that_is_not_there_cannot_be_branched(broker: RunningApp) -> None:
    status, told = branch(broker, source="nothing")
    assert (status, told["error"]) == (404, "UNKNOWN_TOPIC_OR_PARTITION")


def test_a_name_that_is_taken_is_refused_and_its_topic_untouched(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    client.create_topic(DEV)
    client.produce(DEV, batch_of(b"mine"))
    status, told = branch(broker)
    assert (status, told["error"]) == (409, "TOPIC_ALREADY_EXISTS")
    assert values(client, DEV) == [b"mine"]


@pytest.mark.parametrize("target", ["", "..", "a/b", "x" * 250, "__consumer_offsets"])
def test_a_name_that_no_topic_may_have_is_refused(broker: RunningApp, client: Client, target: str) -> None:
    client.create_topic(ORDERS)
    status, told = branch(broker, target)
    assert (status, told["error"]) == (400, "INVALID_TOPIC_EXCEPTION")


def test_the_brokers_own_topics_are_not_branched(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    produce_at(client, START_MS)
    commit(client, "g", ORDERS, 1)
    status, told = branch(broker, source="__consumer_offsets")
    assert (status, told["error"]) == (400, "INVALID_TOPIC_EXCEPTION")


def test_another_clusters_request_is_refused(broker: RunningApp, client: Client) -> None:
    client.create_topic(ORDERS)
    asked = {"cluster_id": "another", "source": ORDERS, "target": DEV, "time_ms": None, "groups": False}
    status, told = post(broker, json.dumps(asked).encode())
    assert (status, told["error"]) == (421, "INCONSISTENT_CLUSTER_ID")


@pytest.mark.parametrize("changed", [{"source": 1}, {"target": None}, {"time_ms": "x"}, {"time_ms": -1}, {"groups": 1}])
def test_a_request_of_the_wrong_kind_is_refused(broker: RunningApp, changed: dict[str, Any]) -> None:
    cluster_id = broker.app._logs.identity.cluster_id
    asked = {"cluster_id": cluster_id, "source": ORDERS, "target": DEV, "time_ms": None, "groups": False, **changed}
    status, told = post(broker, json.dumps(asked).encode())
    assert (status, told["error"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 16_000, b'{"a":' * 3_000])
def test_a_body_that_is_no_request_is_refused(broker: RunningApp, body: bytes) -> None:
    assert post(broker, body)[0] == 400


def test_what_a_browser_may_post_from_another_site_is_refused(broker: RunningApp) -> None:
    assert post(broker, b"{}", "text/plain")[0] == 415


def test_a_body_without_end_is_refused(broker: RunningApp) -> None:
    assert post(broker, b" " * (routes.BODY_BYTES_MAX + 1))[0] == 413


def test_no_more_branches_than_the_limit_are_made_at_once(
    broker: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(ORDERS)
    monkeypatch.setattr(branching, "BRANCHES_AT_ONCE_MAX", 0)
    status, told = branch(broker)
    assert (status, told["error"]) == (429, "POLICY_VIOLATION")


# What takes long, and what fails


def test_a_branch_that_takes_long_is_waited_for_by_asking_again(
    broker: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(ORDERS)
    client.produce(ORDERS, batch_of(b"a"))
    log = broker.app._partitions.get(ORDERS, 0).log
    monkeypatch.setattr(branch_page, "ANSWER_WAIT_S", 0.05)
    broker.run(log.names_lock.acquire())
    assert branch(broker) == (202, {"state": "under way"})
    assert branch(broker) == (202, {"state": "under way"})
    broker.call(log.names_lock.release)
    monkeypatch.setattr(branch_page, "ANSWER_WAIT_S", TIMEOUT_S)
    assert branch(broker)[1]["state"] == "done"


def test_a_branch_that_fails_leaves_nothing_and_can_be_asked_for_again(
    broker: RunningApp, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(ORDERS)
    client.produce(ORDERS, batch_of(b"a"))

    def fail(_log: PartitionLog, *_: Any) -> None:
        raise OSError(5, "no such luck")

    with monkeypatch.context() as patched:
        patched.setattr("flowstone.log.branching.files._Building.run", fail)
        status, told = branch(broker)
    assert (status, told["error"]) == (503, "KAFKA_STORAGE_ERROR")
    broker.run(broker.app._logs.directories[0].housekeeping.in_thread(lambda: None))
    assert not [path for path in tmp_path.iterdir() if DEV in path.name]
    assert branch(broker)[0] == 200
