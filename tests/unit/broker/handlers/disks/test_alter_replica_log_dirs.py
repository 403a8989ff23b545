"""AlterReplicaLogDirs and DescribeLogDirs while replicas move between the log directories of a broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flowstone.errors import ErrorCode
from flowstone.log.directories import replica_moves
from flowstone.wire import messages as m
from flowstone.wire.record_batch import decode_records
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, batch_of, whole_batches

WAIT_S = 20.0


def move(client: Client, path: Path | str, topic: str, *partitions: int, version: int = 2) -> list[ErrorCode]:
    topics = [m.AlterReplicaLogDirsRequestTopic(name=topic, partitions=list(partitions))]
    directory = m.AlterReplicaLogDirsRequestDir(path=str(path), topics=topics)
    (result,) = client.ask(version, m.AlterReplicaLogDirsRequest(dirs=[directory])).results
    assert result.topic_name == topic
    return [ErrorCode(each.error_code) for each in result.partitions]


def replicas(client: Client, topic: str) -> dict[tuple[str, bool], m.DescribeLogDirsResponsePartition]:
    """The replicas of partition 0, by the name of the directory and whether it is a future one."""
    results = client.ask(4, m.DescribeLogDirsRequest(topics=None)).results
    return {
        (Path(each.log_dir).name, partition.is_future_key): partition
        for each in results
        for found in each.topics
        for partition in found.partitions
        if found.name == topic and partition.partition_index == 0
    }


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.005)


def directories(tmp_path: Path) -> tuple[Path, Path, str]:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir(), second.mkdir()
    return first, second, f"{first},{second}"


def values(client: Client, topic: str) -> list[bytes]:
    """The values of all records, from the log's first offset on."""
    found: list[bytes] = []
    offset = 0
    while offset < client.end_offset(topic):
        answer = client.fetch(topic, offset)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            offset = answer.log_start_offset
            continue
        assert answer.error_code == ErrorCode.NONE
        for batch in whole_batches(bytes(answer.records)):
            records = [each for each in decode_records(batch) if each.offset >= offset]
            found += [each.value or b"" for each in records]
            offset = records[-1].offset + 1 if records else offset
    return found


def elsewhere(client: Client, topic: str, *paths: Path) -> Path:
    """The directory that does not have the topic's first partition."""
    (home,) = {name for name, _ in replicas(client, topic)}
    return next(each for each in paths if each.name != home)


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_moves_with_its_records_and_takes_more_after_it(tmp_path: Path, version: int) -> None:
    first, second, data = directories(tmp_path)
    sent = [b"%d" % number for number in range(20)]
    with RunningApp(data) as app, app.client() as client:
        client.create_topic("t")
        for each in sent:
            assert client.produce("t", batch_of(each)).error_code == ErrorCode.NONE
        target = elsewhere(client, "t", first, second)
        assert move(client, target, "t", 0, version=version) == [ErrorCode.NONE]
        until(lambda: set(replicas(client, "t")) == {(target.name, False)})
        client.produce("t", batch_of(b"more"))
        assert values(client, "t") == [*sent, b"more"]
        assert not (elsewhere(client, "t", first, second) / "t-0").exists()
        until(lambda: not (target / "t-0" / "moved-from").exists())
    with RunningApp(data) as app, app.client() as client:
        assert values(client, "t") == [*sent, b"more"]
        assert set(replicas(client, "t")) == {(target.name, False)}


def test_a_replica_moves_there_and_back_while_records_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "ROUND_BYTES_MAX", 256 * 1024)
    monkeypatch.setattr(replica_moves, "TAIL_BYTES_MAX", 64 * 1024)
    first, second, data = directories(tmp_path)
    acknowledged: list[bytes] = []
    ended = threading.Event()

    def produce(client: Client) -> None:
        number = 0
        while not ended.is_set():
            value = b"%d:" % number + bytes(5000)
            answer = client.produce("t", batch_of(value))
            if answer.error_code == ErrorCode.NONE:
                acknowledged.append(value)
                number += 1
            else:
                assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    with RunningApp(data) as app, app.client() as client, app.client() as producing:
        client.create_topic("t", segment_bytes=str(1 << 20))
        for _ in range(4):
            client.produce("t", batch_of(bytes(900_000)))
        thread = threading.Thread(target=produce, args=(producing,))
        thread.start()
        try:
            for _ in range(4):
                target = elsewhere(client, "t", first, second)
                assert move(client, target, "t", 0) == [ErrorCode.NONE]
                until(lambda target=target: set(replicas(client, "t")) == {(target.name, False)})
        finally:
            ended.set()
            thread.join()
        assert len(acknowledged) > 10
        assert values(client, "t")[4:] == acknowledged
        assert len(list((target / "t-0").glob("*.log"))) >= 4
    with RunningApp(data) as app, app.client() as client:
        assert values(client, "t")[4:] == acknowledged


def test_a_future_replica_is_shown_until_its_move_ends_or_is_taken_back(tmp_path: Path) -> None:
    first, second, data = directories(tmp_path)
    with RunningApp(data, replica_alter_log_dirs_io_max_bytes_per_second="1000") as app, app.client() as client:
        client.create_topic("t")
        for _ in range(40):  # more than one round
            client.produce("t", batch_of(bytes(900_000)))
        target = elsewhere(client, "t", first, second)
        home = first if target is second else second
        assert move(client, target, "t", 0) == [ErrorCode.NONE]
        until(lambda: (target.name, True) in replicas(client, "t"))
        until(lambda: replicas(client, "t")[target.name, True].partition_size > 0)
        found = replicas(client, "t")
        assert found[target.name, True].partition_size < found[home.name, False].partition_size
        assert 0 < found[target.name, True].offset_lag <= 40
        assert found[home.name, False].offset_lag == 0
        assert move(client, home, "t", 0) == [ErrorCode.NONE]
        assert set(replicas(client, "t")) == {(home.name, False)}
        until(lambda: not list(target.glob("*-future")))


def test_a_move_that_a_stop_interrupts_is_done_after_the_next_start(tmp_path: Path) -> None:
    first, second, data = directories(tmp_path)
    with RunningApp(data, replica_alter_log_dirs_io_max_bytes_per_second="1000") as app, app.client() as client:
        client.create_topic("t")
        for _ in range(40):
            client.produce("t", batch_of(bytes(900_000)))
        target = elsewhere(client, "t", first, second)
        assert move(client, target, "t", 0) == [ErrorCode.NONE]
        until(lambda: bool(list(target.glob("*-future"))))
    with RunningApp(data) as app, app.client() as client:
        until(lambda: set(replicas(client, "t")) == {(target.name, False)})
        assert client.end_offset("t") == 40


def test_an_empty_replica_moves_without_files(tmp_path: Path) -> None:
    first, second, data = directories(tmp_path)
    with RunningApp(data) as app, app.client() as client:
        client.create_topic("t")
        target = elsewhere(client, "t", first, second)
        assert move(client, target, "t", 0) == [ErrorCode.NONE]
        until(lambda: set(replicas(client, "t")) == {(target.name, False)})
        client.produce("t", batch_of(b"a"))
        assert (target / "t-0").is_dir()


def test_errors_are_those_of_kafka(tmp_path: Path) -> None:
    first, second, data = directories(tmp_path)
    with RunningApp(data) as app, app.client() as client:
        client.create_topic("t")
        client.create_topic("l" * 249)
        target = elsewhere(client, "t", first, second)
        assert move(client, tmp_path / "c", "t", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
        assert move(client, "a", "t", 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert move(client, target, "t", 1, 0, -1) == [unknown, ErrorCode.NONE, unknown]
        assert move(client, target, "no", 0) == [unknown]
        assert move(client, target, "l" * 249, 0) == [ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_a_topic_that_is_deleted_while_it_moves_can_be_created_again(tmp_path: Path) -> None:
    first, second, data = directories(tmp_path)
    with RunningApp(data) as app, app.client() as client:
        for _ in range(5):
            client.create_topic("t")
            client.produce("t", batch_of(bytes(100_000)))
            assert move(client, elsewhere(client, "t", first, second), "t", 0) == [ErrorCode.NONE]
            (deleted,) = client.ask(5, m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000)).responses
            assert deleted.error_code == ErrorCode.NONE
        client.create_topic("t")
        until(lambda: client.produce("t", batch_of(b"new")).error_code == ErrorCode.NONE)
        assert values(client, "t") == [b"new"]
