"""A broker with two data directories, of which one fails while clients are served."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator

import pytest

from flowstone.coordinator.partitioning import partition_for
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support.broken_disks import BrokenDisks
from tests.support.group_commits import commit
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, batch_of

FIRST, SECOND = "/disks/a", "/disks/b"


class Broker(RunningApp):
    def __init__(self) -> None:
        self.disks = BrokenDisks()
        super().__init__(
            f"{FIRST},{SECOND}",
            files=self.disks,
            http_listener="127.0.0.1:0",
            offsets_topic_num_partitions="2",
        )

    def home(self, topic: str, partition: int) -> str:
        logs = self.app.services.logs
        return logs.directory_of(logs.logs[topic, partition]).path  # type: ignore[index]

    def fail(self, path: str) -> None:
        """The disk dies, and the broker notices."""
        self.disks.break_disk(path)
        with self.client() as client:
            for partition in range(2):
                if self.home("events", partition) == path:
                    assert produced(client, partition) is ErrorCode.KAFKA_STORAGE_ERROR
        directory = next(each for each in self.app.services.logs.directories if each.path == path)
        while self.call(lambda: directory.fault) is None:
            pass


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        with broker.client() as client:
            client.create_topic("events", 2)
            for partition in range(2):
                assert produced(client, partition) is ErrorCode.NONE
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with broker.client() as client:
        yield client


def produced(client: Client, partition: int, topic: str = "events") -> ErrorCode:
    return ErrorCode(client.produce(topic, batch_of(b"v"), partition=partition).error_code)


@pytest.mark.parametrize("path", [FIRST, SECOND])
def test_the_other_directorys_partitions_are_served_on(broker: Broker, client: Client, path: str) -> None:
    broker.fail(path)
    codes = {broker.home("events", partition): produced(client, partition) for partition in range(2)}
    assert codes[path] is ErrorCode.KAFKA_STORAGE_ERROR
    assert sorted(codes.values()) == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]


@pytest.mark.parametrize("path", [FIRST, SECOND])
def test_topics_can_be_made_and_deleted_without_it(broker: Broker, client: Client, path: str) -> None:
    broker.fail(path)
    assert client.create_topic("later", 2) == ErrorCode.NONE
    assert [produced(client, partition, "later") for partition in range(2)] == [ErrorCode.NONE] * 2
    assert {broker.home("later", partition) for partition in range(2)} == {FIRST, SECOND} - {path}
    wanted = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="events")], timeout_ms=1000)
    assert client.ask(6, wanted).responses[0].error_code == ErrorCode.NONE
    assert client.create_topic("events", 2) == ErrorCode.NONE
    assert [produced(client, partition) for partition in range(2)] == [ErrorCode.NONE] * 2


def test_groups_on_the_other_directory_go_on_and_those_on_it_hear_of_it(broker: Broker, client: Client) -> None:
    groups = {partition_for(f"group-{number}", 2): f"group-{number}" for number in range(20)}
    for group in groups.values():
        commit(client, group, "events", 1)
    broker.fail(FIRST)
    for partition, group in groups.items():
        is_gone = broker.home("__consumer_offsets", partition) == FIRST
        wanted = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
        topic = OffsetCommitRequestTopic(name="events", partitions=[wanted])
        answer = client.ask(5, OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic]))
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        assert (code is not ErrorCode.NONE) == is_gone


def test_a_broker_with_a_directory_left_is_healthy(broker: Broker) -> None:
    broker.fail(FIRST)
    assert broker.get("/health")[0] == 200
    assert broker.get("/ready")[0] == 200
    states = {each["path"]: each["state"] for each in json.loads(broker.get("/disks")[1])["directories"]}
    assert states == {FIRST: "offline", SECOND: "online"}


def test_without_any_left_it_is_not(broker: Broker) -> None:
    broker.fail(FIRST)
    broker.fail(SECOND)
    assert broker.get("/health")[0] == 503


def test_a_disk_that_turned_read_only_is_noticed(broker: Broker, client: Client) -> None:
    broker.disks.break_disk(FIRST, errno.EROFS)
    (hit,) = [partition for partition in range(2) if broker.home("events", partition) == FIRST]
    assert produced(client, hit) is ErrorCode.KAFKA_STORAGE_ERROR
    directory = broker.app.services.logs.directories[0]
    while broker.call(lambda: directory.fault) is None:
        pass
    assert produced(client, 1 - hit) is ErrorCode.NONE
