"""Disks that die under a running broker: what is on the others is served on, and nothing acknowledged is lost."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import DescribeLogDirsRequest
from tests.support.broker_process import BrokerDied, BrokerProcess

from .checker import Fault
from .filesystems import LoopExt4, loop_ext4
from .filled_broker import FilledBroker
from .raw_client import RawClient, Refused

DISKS = 2
FAILURE_TIMEOUT_S, POLL_S = 20.0, 0.05
FILL_BATCHES = 100


class DisksBroker(FilledBroker):
    """A broker with two partitions on two disks, one on each."""

    def __init__(self, disks: list[LoopExt4]) -> None:
        self.disks = disks
        super().__init__(Path(",".join(str(disk.path / "data") for disk in disks)))
        self.partitions = [TopicPartition("orders", number) for number in range(DISKS)]

    def disk_of(self, partition: TopicPartition) -> LoopExt4:
        return next(disk for disk in self.disks if (disk.path / "data" / str(partition)).is_dir())


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[DisksBroker]:
    with ExitStack() as mounted:
        disks = []
        for number in range(DISKS):
            (tmp_path / f"disk-{number}").mkdir()
            disks.append(mounted.enter_context(loop_ext4(tmp_path / f"disk-{number}")))
        broker = DisksBroker(disks)
        with broker.start() as process, RawClient(process.bootstrap) as client:
            client.create_topic("orders", len(broker.partitions))
            broker.fill(client, FILL_BATCHES)
            assert process.terminate() == 0
        yield broker


def remount_read_only(disk: LoopExt4) -> None:
    """As ext4 does by itself when it meets an error; a plain `ro` is refused while files are open for writing."""
    subprocess.run(["mount", "-o", "remount,abort", str(disk.path)], check=True, capture_output=True)


def fill_until_refused(filled: DisksBroker, client: RawClient, partition: TopicPartition) -> Refused:
    everywhere, filled.partitions = filled.partitions, [partition]
    try:
        with pytest.raises(Refused) as refused:
            filled.fill(client, 10_000, producer="unlucky")
        return refused.value
    finally:
        filled.partitions = everywhere


def wait_failed(broker: BrokerProcess) -> None:
    deadline_s = time.monotonic() + FAILURE_TIMEOUT_S
    while "the data directory has failed" not in broker.output:
        assert time.monotonic() < deadline_s, broker.output
        time.sleep(POLL_S)


@pytest.mark.parametrize("which", range(DISKS))
@pytest.mark.parametrize("break_disk", [LoopExt4.lose_power, remount_read_only], ids=["dead", "read-only"])
def test_a_disk_that_dies_takes_its_partitions_offline_and_the_others_are_served_on(
    filled: DisksBroker, break_disk: Callable[[LoopExt4], None], which: int
) -> None:
    hit, other = filled.partitions[which], filled.partitions[1 - which]
    disk = filled.disk_of(hit)
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        break_disk(disk)
        assert fill_until_refused(filled, client, hit).code is ErrorCode.KAFKA_STORAGE_ERROR
        wait_failed(broker)
        filled.partitions = [other]
        filled.fill(client, 20, producer="others go on")
        client.create_topic("made-later", 2)
        with broker.connect() as admin:
            described = admin.ask(4, DescribeLogDirsRequest(topics=None)).results
        states = {each.log_dir: ErrorCode(each.error_code) for each in described}
        assert states[str(disk.path / "data")] is ErrorCode.KAFKA_STORAGE_ERROR
        assert sorted(states.values()) == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
        assert broker.terminate() == 0, broker.output
    disk.restore_power()
    filled.partitions = [hit, other]
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not filled.check(client, Fault.POWER_LOSS), broker.output
        filled.fill(client, 20, producer="after")


@pytest.mark.parametrize("which", range(DISKS))
def test_a_broker_starts_without_a_disk_that_is_not_mounted(filled: DisksBroker, which: int) -> None:
    hit, other = filled.partitions[which], filled.partitions[1 - which]
    disk = filled.disk_of(hit)
    disk.unmount()
    try:
        with filled.start() as broker, RawClient(broker.bootstrap) as client:
            with pytest.raises(Refused) as refused:
                client.read_log(hit)
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            filled.partitions = [other]
            filled.fill(client, 20, producer="meanwhile")
            assert broker.terminate() == 0
        assert list(disk.path.iterdir()) == [], "the empty mount point was written to"
    finally:
        disk.mount()
    filled.partitions = [hit, other]
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not filled.check(client), broker.output
        filled.fill(client, 20, producer="after")


def test_a_broker_without_any_disk_does_not_start(filled: DisksBroker) -> None:
    for disk in filled.disks:
        disk.unmount()
        disk.path.rmdir()
        disk.path.write_bytes(b"")  # not even a directory
    try:
        with pytest.raises(BrokerDied, match="cannot be used"):
            filled.start().wait_ready()
    finally:
        for disk in filled.disks:
            disk.path.unlink()
            disk.path.mkdir()
            disk.mount()


def test_when_the_last_disk_dies_the_broker_ends_saying_so(filled: DisksBroker) -> None:
    broker = filled.start().wait_ready()
    with RawClient(broker.bootstrap) as client:
        for disk in filled.disks:
            disk.lose_power()
        for partition in filled.partitions:
            filled.partitions = [partition]
            with pytest.raises((Refused, ConnectionError)):
                filled.fill(client, 1000, producer="unlucky")
    assert broker.wait_exit() == 1, broker.output
