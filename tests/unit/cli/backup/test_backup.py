"""Topics into files and back: every record at its offset, from a broker that is written to meanwhile."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from flowstone.broker.topics import restoring
from flowstone.cli.backup import backup as backup_command
from flowstone.cli.backup.backup import _Writer
from flowstone.cli.common.broker_pages import Address, ask
from flowstone.client import Cluster, TopicRecreated
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition as Partition
from tests.support.group_commits import commit
from tests.support.running_app import RunningApp

Run = Callable[..., CompletedProcess[str]]
Flow = Callable[..., str]
Record = tuple[int, int, bytes | None, bytes | None, int, list[tuple[str, bytes]]]


class Broker(RunningApp):
    """With everything the commands need, HTTP included."""

    def __init__(self, data: str, **settings: str) -> None:
        super().__init__(data, http_listener="127.0.0.1:0", **settings)

    @property
    def bootstrap(self) -> str:
        host, port = self.app.addresses["PLAINTEXT"]
        return f"{host}:{port}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(f"{tmp_path}/disk-a,{tmp_path}/disk-b") as broker:
        yield broker


def flow_of(broker: Broker, run: Run) -> Flow:
    def flow(*arguments: object) -> str:
        done = run(*arguments, "--bootstrap", broker.bootstrap)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return flow


@pytest.fixture
def flow(broker: Broker, run: Run) -> Flow:
    """Runs a command that succeeds."""
    return flow_of(broker, run)


def produce(broker: Broker, topic: str, numbers: range, **options: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, **options})
    for number in numbers:
        producer.produce(
            topic,
            key=f"key-{number % 7}",
            value=f"value-{number}",
            headers=[("n", str(number).encode())],
            timestamp=1_700_000_000_000 + number,
        )
        if number % 10 == 9:
            producer.flush()
    producer.flush()


def produce_segments(broker: Broker, topic: str) -> None:
    """200 records in four segments."""
    for start in range(0, 200, 50):
        produce(broker, topic, range(start, start + 50))
        log = broker.app.services.partitions.get(topic, 0).log
        if start < 150:
            broker.call(lambda log=log: broker.app.services.logs.directory_of(log).housekeeping.roll(log))  # type: ignore[misc]


def records(broker: Broker, topic: str, partitions: int) -> list[Record]:
    settings = {"group.id": "reader", "auto.offset.reset": "error", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    found: list[Record] = []
    bounds = {at: consumer.get_watermark_offsets(TopicPartition(topic, at), timeout=10) for at in range(partitions)}
    consumer.assign([TopicPartition(topic, at, low) for at, (low, high) in bounds.items() if low < high])
    open_partitions = {at for at, (low, high) in bounds.items() if low < high}
    while open_partitions:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is not None:
            open_partitions.discard(message.partition())
            continue
        found.append(
            (
                message.partition(),
                message.offset(),
                message.key(),
                message.value(),
                message.timestamp()[1],
                message.headers() or [],
            )
        )
    consumer.close()
    return sorted(found)


def bounds(broker: Broker, topic: str) -> list[tuple[int, int]]:
    image = broker.app.services.metadata.image.topics[topic]
    partitions = [broker.app.services.partitions.get(topic, at) for at in range(len(image.partitions))]
    return [(each.log.log_start_offset, each.log.log_end_offset) for each in partitions]


def delete_records(broker: Broker, topic: str, offset: int) -> None:
    log = broker.app.services.partitions.get(topic, 0).log
    broker.run(broker.app.services.logs.delete_records_before(log, offset))


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_topic_comes_back_with_every_record_at_its_offset(
    broker: Broker, flow: Flow, tmp_path: Path, codec: str
) -> None:
    flow("topic", "create", "orders", "--partitions", 3, "--config", "retention.ms=-1")
    produce(broker, "orders", range(300), **{"compression.type": codec})
    before = records(broker, "orders", 3)
    assert len(before) == 300
    told = flow("backup", "orders", "--to", tmp_path / "backup")
    assert told.startswith("backed up orders: 3 partitions, 300 offsets, ")
    flow("topic", "delete", "orders", "--yes")
    assert flow("restore", "--from", tmp_path / "backup").startswith("restored orders: 3 partitions, ")
    assert records(broker, "orders", 3) == before
    assert "retention.ms=-1" in flow("topic", "describe", "orders")


def test_a_restored_topic_takes_records_after_those_it_has(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "orders")
    produce(broker, "orders", range(50))
    flow("backup", "orders", "--to", tmp_path / "backup")
    flow("restore", "orders", "--from", tmp_path / "backup", "--as", "copy")
    produce(broker, "copy", range(50, 60), **{"enable.idempotence": True})
    assert [each[1] for each in records(broker, "copy", 1)] == list(range(60))
    assert bounds(broker, "orders") == [(0, 50)]


def test_a_restored_topic_survives_a_restart(run: Run, tmp_path: Path) -> None:
    data = f"{tmp_path}/disk-a,{tmp_path}/disk-b"
    with Broker(data) as broker:
        flow = flow_of(broker, run)
        flow("topic", "create", "orders", "--partitions", 2)
        produce(broker, "orders", range(100))
        flow("backup", "orders", "--to", tmp_path / "backup")
        flow("restore", "--from", tmp_path / "backup", "--as", "copy")
        produce(broker, "copy", range(100, 110))
        before = records(broker, "copy", 2)
    with Broker(data) as broker:
        assert records(broker, "copy", 2) == before


def test_a_topic_is_restored_in_another_cluster(run: Run, tmp_path: Path) -> None:
    with Broker(str(tmp_path / "old")) as broker:
        flow_of(broker, run)("topic", "create", "orders")
        produce(broker, "orders", range(100), **{"enable.idempotence": True})
        before = records(broker, "orders", 1)
        flow_of(broker, run)("backup", "orders", "--to", tmp_path / "backup")
    with Broker(str(tmp_path / "new")) as broker:
        flow_of(broker, run)("restore", "--from", tmp_path / "backup")
        # The new cluster gives out the old one's producer ids again.
        produce(broker, "orders", range(100, 110), **{"enable.idempotence": True})
        assert records(broker, "orders", 1)[:100] == before
        assert bounds(broker, "orders") == [(0, 110)]


def test_what_is_appended_after_the_moment_of_the_backup_is_not_in_it(
    broker: Broker, flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow("topic", "create", "orders")
    produce(broker, "orders", range(50))
    fetch = backup_command._Writer._fetch

    def append_first(writer: Any, where: Any, start: int, end: int) -> Any:
        produce(broker, "orders", range(50, 60))
        return fetch(writer, where, start, end)

    monkeypatch.setattr(backup_command._Writer, "_fetch", append_first)
    flow("backup", "orders", "--to", tmp_path / "backup")
    flow("restore", "--from", tmp_path / "backup", "--as", "copy")
    assert bounds(broker, "copy") == [(0, 50)]
    assert bounds(broker, "orders") == [(0, 60)]


def test_a_backup_of_a_topic_that_is_written_to_is_a_prefix_of_it(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "orders", "--partitions", 2)
    produce(broker, "orders", range(50))
    stop = threading.Event()

    def write() -> None:
        number = 50
        while not stop.is_set():
            produce(broker, "orders", range(number, number + 10))
            number += 10

    writer = threading.Thread(target=write)
    writer.start()
    try:
        flow("backup", "orders", "--to", tmp_path / "backup")
    finally:
        stop.set()
        writer.join()
    flow("restore", "--from", tmp_path / "backup", "--as", "copy")
    copied, original = records(broker, "copy", 2), records(broker, "orders", 2)
    for partition in range(2):
        mine = [each for each in copied if each[0] == partition]
        assert mine == [each for each in original if each[0] == partition][: len(mine)]
    assert len(copied) >= 50


def test_a_log_that_begins_later_keeps_its_offsets(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "orders")
    produce(broker, "orders", range(50))
    delete_records(broker, "orders", 33)
    flow("backup", "orders", "--to", tmp_path / "backup")
    flow("restore", "--from", tmp_path / "backup", "--as", "copy")
    assert bounds(broker, "copy") == [(33, 50)]
    assert [each[1] for each in records(broker, "copy", 1)] == list(range(33, 50))


def test_a_log_whose_records_are_all_deleted_goes_on_where_it_was(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "orders", "--partitions", 2)
    produce(broker, "orders", range(50))
    end = bounds(broker, "orders")[0][1]
    delete_records(broker, "orders", end)
    flow("backup", "orders", "--to", tmp_path / "backup")
    flow("restore", "--from", tmp_path / "backup", "--as", "copy")
    assert bounds(broker, "copy")[0] == (end, end)


def test_a_log_of_several_segments_comes_back(
    broker: Broker, flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_command, "SEGMENT_BYTES_MAX", 2000)
    flow("topic", "create", "orders")
    produce_segments(broker, "orders")
    flow("backup", "orders", "--to", tmp_path / "backup")
    assert len(list((tmp_path / "backup" / "orders-0").glob("*.log"))) > 1
    flow("restore", "--from", tmp_path / "backup", "--as", "copy")
    assert [each[1:] for each in records(broker, "copy", 1)] == [each[1:] for each in records(broker, "orders", 1)]


def test_a_compacted_log_keeps_its_holes_and_every_keys_last_value(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "table", "--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0.01")
    produce_segments(broker, "table")
    log = broker.app.services.partitions.get("table", 0).log
    broker.run(broker.app.services.logs.directory_of(log).cleaner.clean_all())
    before = records(broker, "table", 1)
    assert len(before) < 200
    flow("backup", "table", "--to", tmp_path / "backup")
    flow("restore", "--from", tmp_path / "backup", "--as", "copy")
    assert [each[1:] for each in records(broker, "copy", 1)] == [each[1:] for each in before]
    assert bounds(broker, "copy") == [(0, 200)]


def test_several_topics_are_backed_up_together_and_restored_one_by_one(
    broker: Broker, flow: Flow, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        flow("topic", "create", name)
        produce(broker, name, range(10))
    flow("backup", "one", "two", "--to", tmp_path / "backup")
    flow("topic", "delete", "one", "--yes")
    flow("restore", "one", "--from", tmp_path / "backup")
    assert bounds(broker, "one") == [(0, 10)]


def test_settings_can_be_changed_on_the_way_back(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "orders", "--config", "retention.ms=1000", "--config", "segment.ms=5000")
    produce(broker, "orders", range(3))
    flow("backup", "orders", "--to", tmp_path / "backup")
    flow("restore", "--from", tmp_path / "backup", "--as", "copy", "--config", "retention.ms=-1")
    assert flow("topic", "describe", "copy").splitlines()[-2:] == ["retention.ms=-1", "segment.ms=5000"]


def test_programs_are_told_in_documents(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "orders")
    produce(broker, "orders", range(5))
    stored = json.loads(flow("backup", "orders", "--to", tmp_path / "backup", "--json"))
    assert (stored["topic"], stored["partitions"][0]["end_offset"]) == ("orders", 5)
    restored = json.loads(flow("restore", "--from", tmp_path / "backup", "--as", "copy", "--json"))
    assert restored["partitions"] == [{"partition": 0, "first_offset": 0, "next_offset": 5}]


# Groups


def committed_in(flow: Flow, group: str) -> dict[tuple[str, int], int]:
    found = json.loads(flow("group", "describe", group, "--json"))
    return {(each["topic"], each["partition"]): each["committed_offset"] for each in found["partitions"]}


def test_groups_go_on_where_they_were_if_that_is_asked_for(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "orders", "--partitions", 2)
    flow("topic", "create", "other")
    produce(broker, "orders", range(20))
    with broker.client() as client:
        commit(client, "readers", "orders", 3, 2)
        commit(client, "readers", "other", 0)
        commit(client, "strangers", "other", 0)
    told = flow("backup", "orders", "--to", tmp_path / "backup")
    assert told.endswith(" bytes, offsets of 1 group\n")
    flow("topic", "delete", "orders", "--yes")
    flow("restore", "--from", tmp_path / "backup", "--as", "copy")
    assert committed_in(flow, "readers") == {("other", 0): 0}
    told = flow("restore", "--from", tmp_path / "backup", "--groups")
    assert told.endswith(", offsets of 1 group\n")
    assert committed_in(flow, "readers") == {("orders", 0): 3, ("orders", 1): 2, ("other", 0): 0}


def test_groups_go_on_under_another_name_too(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "orders")
    produce(broker, "orders", range(20))
    with broker.client() as client:
        commit(client, "readers", "orders", 7)
    flow("backup", "orders", "--to", tmp_path / "backup")
    told = flow("restore", "--from", tmp_path / "backup", "--as", "copy", "--groups", "--json")
    assert json.loads(told)["groups"] == ["readers"]
    assert committed_in(flow, "readers") == {("copy", 0): 7, ("orders", 0): 7}


def test_a_group_with_members_is_told_of_before_anything_is_restored(
    broker: Broker, flow: Flow, run: Run, tmp_path: Path
) -> None:
    flow("topic", "create", "orders")
    produce(broker, "orders", range(20))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "live", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    try:
        while consumer.poll(10) is None:
            pass
        consumer.commit(asynchronous=False)
        flow("backup", "orders", "--to", tmp_path / "backup")
        told = refused(broker, run, "restore", "--from", tmp_path / "backup", "--as", "copy", "--groups")
        assert "group live has 1 member: stop them first" in told
        assert "copy" not in flow("topic", "list")
    finally:
        consumer.close()


def test_a_backup_from_before_groups_were_in_it_is_restored(broker: Broker, flow: Flow, tmp_path: Path) -> None:
    flow("topic", "create", "orders")
    produce(broker, "orders", range(20))
    flow("backup", "orders", "--to", tmp_path / "backup")
    manifest = tmp_path / "backup" / "backup.json"
    document = json.loads(manifest.read_text())
    for topic in document["topics"]:
        del topic["groups"]
    manifest.write_text(json.dumps(document))
    flow("restore", "--from", tmp_path / "backup", "--as", "copy", "--groups")
    assert bounds(broker, "copy") == [(0, 20)]


# FetchErrorLog


@pytest.fixture
def stored(broker: Broker, flow: Flow, tmp_path: Path) -> Path:
    flow("topic", "create", "orders")
    produce(broker, "orders", range(20))
    flow("backup", "orders", "--to", tmp_path / "backup")
    return tmp_path / "backup"


def refused(broker: Broker, run: Run, *arguments: object) -> str:
    done = run(*arguments, "--bootstrap", broker.bootstrap)
    assert done.returncode == 1
    assert staged(broker) == []
    return done.stderr


def staged(broker: Broker) -> list[Path]:
    return [each for path in broker.app.config.log_directories for each in Path(path).glob("*-staged")]


def test_a_topic_that_exists_is_not_restored_over(broker: Broker, run: Run, stored: Path) -> None:
    assert "there is a topic orders already" in refused(broker, run, "restore", "--from", stored)


@pytest.mark.parametrize("name", ["00000000000000000000.log", "00000000000000000000.index"])
def test_a_damaged_file_is_found_and_nothing_restored(broker: Broker, run: Run, stored: Path, name: str) -> None:
    file = stored / "orders-0" / name
    file.write_bytes(b"?" + file.read_bytes()[1:])
    assert "its checksum does not match" in refused(broker, run, "restore", "--from", stored, "--as", "copy")
    assert "copy" not in broker.app.services.metadata.image.topics


def test_a_missing_file_is_found(broker: Broker, run: Run, stored: Path) -> None:
    (stored / "orders-0" / "00000000000000000000.log").unlink()
    assert "the backup is damaged" in refused(broker, run, "restore", "--from", stored, "--as", "copy")


def test_a_backup_that_did_not_come_to_an_end_is_refused(broker: Broker, run: Run, stored: Path) -> None:
    (stored / "backup.json").unlink()
    assert "an incomplete one" in refused(broker, run, "restore", "--from", stored, "--as", "copy")


def test_a_manifest_that_leads_elsewhere_is_refused(broker: Broker, run: Run, stored: Path) -> None:
    manifest = json.loads((stored / "backup.json").read_text())
    manifest["topics"][0]["partitions"][0]["files"][0]["name"] = "../../evil"
    (stored / "backup.json").write_text(json.dumps(manifest))
    assert "is not where the manifest says" in refused(broker, run, "restore", "--from", stored, "--as", "copy")


def test_a_name_that_cannot_be_is_refused_by_the_broker(broker: Broker, run: Run, stored: Path) -> None:
    told = refused(broker, run, "restore", "--from", stored, "--as", "no/name")
    assert "the broker refused" in told


def test_a_topic_that_is_not_in_the_backup_is_named(broker: Broker, run: Run, stored: Path) -> None:
    assert "holds no topic other, but orders" in refused(broker, run, "restore", "other", "--from", stored)


def test_a_full_disk_is_not_filled_further(broker: Broker, run: Run, stored: Path) -> None:
    def fill() -> None:
        for space in broker.app._disks.directories:
            space.usable_bytes = space.floor_bytes

    broker.call(fill)
    assert "has enough free space for" in refused(broker, run, "restore", "--from", stored, "--as", "copy")


def test_a_directory_that_has_something_in_it_takes_no_backup(broker: Broker, run: Run, stored: Path) -> None:
    assert "contains a backup already" in refused(broker, run, "backup", "orders", "--to", stored)
    (stored / "backup.json").unlink()
    assert "is not empty" in refused(broker, run, "backup", "orders", "--to", stored)


def test_without_http_nothing_can_be_restored(run: Run, tmp_path: Path, stored: Path) -> None:
    with RunningApp(str(tmp_path / "silent")) as broker:
        host, port = broker.app.addresses["PLAINTEXT"]
        done = run("restore", "--from", stored, "--bootstrap", f"{host}:{port}")
    assert "which are off" in done.stderr


# Failures


def test_a_topic_that_the_metadata_has_no_space_for_leaves_nothing(
    broker: Broker, run: Run, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "there is no space on the disk")

    monkeypatch.setattr(restoring._Restoring, "publish", refuse)
    told = refused(broker, run, "restore", "--from", stored, "--as", "copy")
    assert "there is no space on the disk" in told
    assert not any(each.topic == "copy" for each in broker.app.services.logs.logs)
    monkeypatch.undo()
    run("restore", "--from", stored, "--as", "copy", "--bootstrap", broker.bootstrap)
    assert bounds(broker, "copy") == [(0, 20)]


def test_a_broker_killed_before_the_metadata_has_the_topic_starts_without_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(str(tmp_path / "data")) as broker:
        flow_of(broker, run)("topic", "create", "orders")
        produce(broker, "orders", range(20))
        flow_of(broker, run)("backup", "orders", "--to", tmp_path / "backup")

        async def keep_waiting(*_: object) -> None:
            shutil.copytree(tmp_path / "data", tmp_path / "crashed", ignore=shutil.ignore_patterns(".lock"))
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker stops")

        monkeypatch.setattr(restoring._Restoring, "publish", keep_waiting)
        run("restore", "--from", tmp_path / "backup", "--as", "copy", "--bootstrap", broker.bootstrap)
    assert (tmp_path / "crashed" / "copy-0").is_dir()
    with Broker(str(tmp_path / "crashed")) as broker:
        assert bounds(broker, "orders") == [(0, 20)]
        assert "copy" not in broker.app.services.metadata.image.topics
        assert not any(each.topic == "copy" for each in broker.app.services.logs.logs)


@pytest.mark.parametrize(
    ("changed", "status"),
    [({"cluster_id": "another"}, 421), ({"token": "../../etc"}, 400), ({"partitions": "2"}, 400), ({"topic": 5}, 400)],
)
def test_a_request_that_is_none_is_refused(broker: Broker, changed: dict[str, object], status: int) -> None:
    asked = {
        "cluster_id": broker.app.services.logs.identity.cluster_id,
        "topic": "copy",
        "partitions": 1,
        "token": "0" * 32,
        "settings": {},
    }
    assert broker.app.http_address is not None
    host, _, port = broker.app.http_address.partition(":")
    assert ask(Address(host, int(port), is_encrypted=False), "/restore", {**asked, **changed})[0] == status
    assert "copy" not in broker.app.services.metadata.image.topics


# Topics that are created again


def topic_id(broker: Broker, topic: str) -> bytes | None:
    with Cluster(broker.bootstrap) as cluster:
        return cluster.describe_topics([topic])[topic].topic_id


def test_a_restored_topic_is_another_topic_than_the_one_it_was_copied_from(
    broker: Broker, flow: Flow, tmp_path: Path
) -> None:
    """Readers may have been ahead of the backup: what a new record's offset was before is not what it is now."""
    flow("topic", "create", "orders")
    produce(broker, "orders", range(5))
    before = topic_id(broker, "orders")
    flow("backup", "orders", "--to", tmp_path / "backup")
    flow("topic", "delete", "orders", "--yes")
    flow("restore", "--from", tmp_path / "backup")
    assert topic_id(broker, "orders") not in (None, before)
    with Cluster(broker.bootstrap) as cluster, pytest.raises(TopicRecreated):
        list(cluster.fetch(Partition("orders", 0), 0, 5, topic_id=before))


def test_a_topic_that_is_created_again_during_a_backup_is_not_mixed_with_the_old_one(
    broker: Broker, flow: Flow, tmp_path: Path
) -> None:
    flow("topic", "create", "orders")
    produce(broker, "orders", range(5))
    before = topic_id(broker, "orders")
    flow("topic", "delete", "orders", "--yes")
    flow("topic", "create", "orders")
    produce(broker, "orders", range(9))
    with Cluster(broker.bootstrap) as cluster, pytest.raises(TopicRecreated, match="topic orders was deleted"):
        _Writer(cluster, {"orders": before}, str(tmp_path), lambda _: None).write(Partition("orders", 0))
