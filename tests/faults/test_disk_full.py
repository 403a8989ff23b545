"""A full disk is no damage: the write is undone, the producer is told, and writing goes on once there is space."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import pytest

from flowstone.errors import ErrorCode
from flowstone.ports.system_files import PAGE_BYTES
from flowstone.types import TopicPartition
from tests.support.group_commits import commit

from .checker import ACKS_ALL
from .filesystems import resize_tmpfs, tmpfs
from .filled_broker import FilledBroker
from .raw_client import RawClient, Refused
from .traffic import batch_of

DISK_BYTES = 8 << 20
BALLAST_BYTES = 3 << 20
BATCHES_MAX = 5000
FREE_PAGES_MAX = 6
RELIEF_TIMEOUT_S, RELIEF_POLL_S = 10.0, 0.05
NO_FLOOR = {"log.dir.free.min.bytes": "0"}  # to the last byte


def _fill_the_disk(filled: FilledBroker, client: RawClient, producer: str) -> Refused:
    with pytest.raises(Refused) as refused:
        filled.fill(client, BATCHES_MAX, producer=producer)
    return refused.value


@pytest.fixture
def disk(tmp_path: Path) -> FilledBroker:
    return FilledBroker(tmp_path / "disk" / "data")


def test_a_full_disk_refuses_writes_loses_nothing_and_takes_more_once_there_is_space(disk: FilledBroker) -> None:
    mount = disk.data.parent
    ballast = mount / "ballast"
    with tmpfs(mount, DISK_BYTES):
        ballast.write_bytes(os.urandom(BALLAST_BYTES))
        with disk.start(NO_FLOOR) as broker, RawClient(broker.bootstrap) as client:
            client.create_topic("orders", len(disk.partitions))
            assert _fill_the_disk(disk, client, "first").code is ErrorCode.KAFKA_STORAGE_ERROR
            # Still served, still full, and nothing of the refused batch is to be seen.
            assert _fill_the_disk(disk, client, "second").code is ErrorCode.KAFKA_STORAGE_ERROR
            assert not disk.check(client), broker.output
            ballast.unlink()
            disk.fill(client, 100, producer="third")
            assert not disk.check(client), broker.output
        # Killed; and once more after the full disk.
        for producer in ("fourth", "fifth"):
            with disk.start(NO_FLOOR) as broker, RawClient(broker.bootstrap) as client:
                assert not disk.check(client), broker.output
                disk.fill(client, 10, producer=producer)


def test_a_broker_killed_with_its_disk_full_starts_again_and_keeps_all(disk: FilledBroker) -> None:
    mount = disk.data.parent
    with tmpfs(mount, DISK_BYTES):
        with disk.start(NO_FLOOR) as broker, RawClient(broker.bootstrap) as client:
            client.create_topic("orders", len(disk.partitions))
            _fill_the_disk(disk, client, "first")
        with disk.start(NO_FLOOR) as broker, RawClient(broker.bootstrap) as client:
            assert not disk.check(client), broker.output
            assert client.read_log(disk.partitions[0]).end_offset > 0
            refused = _fill_the_disk(disk, client, "second")
            assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
        resize_tmpfs(mount, 2 * DISK_BYTES)
        with disk.start(NO_FLOOR) as broker, RawClient(broker.bootstrap) as client:
            assert not disk.check(client), broker.output
            disk.fill(client, 100, ACKS_ALL, producer="third")
            assert not disk.check(client), broker.output


def test_a_disk_that_is_full_in_the_middle_of_a_partition_s_first_append_fails_nothing_else(disk: FilledBroker) -> None:
    """Whichever file of the new directory finds no space, the next try succeeds once there is some."""
    mount = disk.data.parent
    disk.partitions = [TopicPartition("orders", number) for number in range(FREE_PAGES_MAX)]
    refusals: list[ErrorCode] = []
    # Checkpoints, which may fail and are tried again, would take the space away.
    settings = {**NO_FLOOR, "log.flush.offset.checkpoint.interval.ms": "60000"}
    with tmpfs(mount, DISK_BYTES):
        with disk.start(settings) as broker, RawClient(broker.bootstrap) as client:
            client.create_topic("orders", len(disk.partitions))
            for free_pages, partition in enumerate(disk.partitions):
                left_bytes = os.statvfs(mount).f_bavail * PAGE_BYTES - free_pages * PAGE_BYTES
                (mount / "ballast").write_bytes(bytes(left_bytes))
                try:
                    _append(disk, client, partition, "first")
                except Refused as refused:
                    refusals.append(refused.code)
                (mount / "ballast").unlink()
                _append(disk, client, partition, "second")
            assert not disk.check(client), broker.output
        with disk.start(NO_FLOOR) as broker, RawClient(broker.bootstrap) as client:
            assert not disk.check(client), broker.output
    assert set(refusals) == {ErrorCode.KAFKA_STORAGE_ERROR}


def test_at_the_floor_records_are_refused_groups_go_on_and_freed_space_is_used_by_itself(disk: FilledBroker) -> None:
    mount = disk.data.parent
    ballast = mount / "ballast"
    with tmpfs(mount, DISK_BYTES):
        ballast.write_bytes(bytes(BALLAST_BYTES))
        settings = {"log.dir.free.min.bytes": str(2 << 20), "offsets.topic.num.partitions": "1"}
        with disk.start(settings) as broker, RawClient(broker.bootstrap) as client:
            client.create_topic("orders", len(disk.partitions))
            refused = _fill_the_disk(disk, client, "first")
            assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert "accepts no new records" in str(refused)
            assert os.statvfs(mount).f_bavail > 0
            with broker.connect() as other:
                commit(other, "readers", "orders", 1, 1)
            assert not disk.check(client), broker.output
            ballast.unlink()
            _fill_when_taken(disk, client)
            assert not disk.check(client), broker.output


def _fill_when_taken(disk: FilledBroker, client: RawClient) -> None:
    """The broker looks at a disk that is full ten times a second."""
    deadline_s = time.monotonic() + RELIEF_TIMEOUT_S
    for number in count():
        try:
            disk.fill(client, 10, producer=f"try {number}")
            break
        except Refused:
            assert time.monotonic() < deadline_s
            time.sleep(RELIEF_POLL_S)


def _append(disk: FilledBroker, client: RawClient, partition: TopicPartition, producer: str) -> None:
    origin = disk.history.next_origin(partition, producer)
    disk.history.acknowledge(partition, client.produce(partition, batch_of([origin]), ACKS_ALL), origin, ACKS_ALL)
