"""A full disk is no damage: the write is undone, the producer is told, and writing goes on once there is room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowstone.errors import ErrorCode
from flowstone.ports.files import PAGE_BYTES
from flowstone.types import TopicPartition

from .checker import ACKS_ALL
from .filesystems import resize_tmpfs, tmpfs
from .filled_broker import FilledBroker
from .raw_client import RawClient, Refused
from .traffic import batch_of

DISK_BYTES = 8 << 20
BALLAST_BYTES = 3 << 20
BATCHES_MAX = 5000
FREE_PAGES_MAX = 6


def _fill_the_disk(filled: FilledBroker, client: RawClient, producer: str) -> Refused:
    with pytest.raises(Refused) as refused:
        filled.fill(client, BATCHES_MAX, producer=producer)
    return refused.value


@pytest.fixture
def disk(tmp_path: Path) -> FilledBroker:
    return FilledBroker(tmp_path / "disk" / "data")


def test_a_full_disk_refuses_writes_loses_nothing_and_takes_more_once_there_is_room(disk: FilledBroker) -> None:
    mount = disk.data.parent
    ballast = mount / "ballast"
    with tmpfs(mount, DISK_BYTES):
        ballast.write_bytes(os.urandom(BALLAST_BYTES))
        with disk.start() as broker, RawClient(broker.bootstrap) as client:
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
            with disk.start() as broker, RawClient(broker.bootstrap) as client:
                assert not disk.check(client), broker.output
                disk.fill(client, 10, producer=producer)


def test_a_broker_killed_with_its_disk_full_starts_again_and_keeps_all(disk: FilledBroker) -> None:
    mount = disk.data.parent
    with tmpfs(mount, DISK_BYTES):
        with disk.start() as broker, RawClient(broker.bootstrap) as client:
            client.create_topic("orders", len(disk.partitions))
            _fill_the_disk(disk, client, "first")
        with disk.start() as broker, RawClient(broker.bootstrap) as client:
            assert not disk.check(client), broker.output
            assert client.read_log(disk.partitions[0]).end_offset > 0
            refused = _fill_the_disk(disk, client, "second")
            assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
        resize_tmpfs(mount, 2 * DISK_BYTES)
        with disk.start() as broker, RawClient(broker.bootstrap) as client:
            assert not disk.check(client), broker.output
            disk.fill(client, 100, ACKS_ALL, producer="third")
            assert not disk.check(client), broker.output


def test_a_disk_that_is_full_in_the_middle_of_a_partition_s_first_append_fails_nothing_else(disk: FilledBroker) -> None:
    """Whichever file of the new directory finds no room, the next try succeeds once there is some."""
    mount = disk.data.parent
    disk.partitions = [TopicPartition("orders", number) for number in range(FREE_PAGES_MAX)]
    refusals: list[ErrorCode] = []
    # Checkpoints, which may fail and are tried again, would take the room away.
    settings = {"log.flush.offset.checkpoint.interval.ms": "60000"}
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
        with disk.start() as broker, RawClient(broker.bootstrap) as client:
            assert not disk.check(client), broker.output
    assert set(refusals) == {ErrorCode.KAFKA_STORAGE_ERROR}


def _append(disk: FilledBroker, client: RawClient, partition: TopicPartition, producer: str) -> None:
    origin = disk.history.next_origin(partition, producer)
    disk.history.acknowledge(partition, client.produce(partition, batch_of([origin]), ACKS_ALL), origin, ACKS_ALL)
