"""Many logs are recovered as each would be alone; only their syncs are done together."""

from __future__ import annotations

from collections import Counter

import pytest

from flowstone.config import TopicConfig
from flowstone.log.lifecycle.directory_recovery import LOGS_AT_ONCE, DirectoryRecovery
from flowstone.log.lifecycle.stored_offsets import OfflineLog, StoredOffsets
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch

TOPIC_ID = b"1" * 16
FEW, MANY = 3, LOGS_AT_ONCE + 5


class CountingFiles(SimulatedFiles):
    def __init__(self) -> None:
        super().__init__()
        self.directory_syncs: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.is_own = False

    def check(self, operation: str) -> None:
        self.calls[operation] += 1
        super().check(operation)

    def sync_directory(self, path: str) -> None:
        self.directory_syncs[path] += 1
        super().sync_directory(path)

    def is_own_filesystem(self, path: str) -> bool:
        return self.is_own


class KilledBroker:
    """A directory with logs of one record each that a killed process wrote and did not sync."""

    def __init__(self, count: int) -> None:
        self.files, self.clock = CountingFiles(), SimulatedClock()
        self.files.make_directory("/data")
        self.found = [(TopicPartition("t", index), StoredOffsets(0, 0, clean=False)) for index in range(count)]
        handles = FileHandles(self.files, 1000)
        for topic_partition, _ in self.found:
            directory = PartitionDirectory(self.files, f"/data/{topic_partition}", exists=False)
            log = PartitionLog(topic_partition, TOPIC_ID, TopicConfig(), self.clock, handles, directory)
            log.append(build_batch([Record(0, 0, None, b"v")]), leader_epoch=0)

    def stop_cleanly(self) -> None:
        """After all its logs were recovered."""
        for log in self.recover().values():
            assert isinstance(log, PartitionLog)
            task = log.closing_task()
            assert task is not None
            task.run()
        self.found = [(topic_partition, StoredOffsets(1, 0, clean=True)) for topic_partition, _ in self.found]
        self.files.calls.clear()

    def recover(self, open_files_max: int = 1000) -> dict[TopicPartition, PartitionLog | OfflineLog]:
        handles = FileHandles(self.files, open_files_max)
        recovering = DirectoryRecovery(self.files, "/data", handles, self.clock, lambda _topic: TopicConfig())
        return dict(recovering.recover(self.found))


@pytest.mark.parametrize("count", [0, FEW, MANY])
def test_every_log_is_durable_when_it_is_recovered(count: int) -> None:
    broker = KilledBroker(count)
    assert list(broker.recover()) == [topic_partition for topic_partition, _ in broker.found]
    broker.files.lose_power()
    logs = broker.recover().values()
    assert [(log.topic_id, log.log_end_offset) for log in logs if isinstance(log, PartitionLog)] == [
        (TOPIC_ID, 1)
    ] * count


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_log_that_cannot_be_synced_stays_offline_alone(count: int) -> None:
    broker = KilledBroker(count)
    broker.files.fail_next("sync", after=2 * FEW)  # beyond what is synced within recovery itself
    logs = broker.recover()
    offline = [log for log in logs.values() if isinstance(log, OfflineLog)]
    assert len(offline) == 1
    assert (offline[0].topic_id, len(logs)) == (TOPIC_ID, count)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_the_directory_of_all_logs_is_synced_once_for_many_of_them(count: int) -> None:
    broker = KilledBroker(count)
    broker.recover()
    assert broker.files.directory_syncs["/data"] == -(-count // LOGS_AT_ONCE)


def test_all_are_offline_if_their_directory_cannot_be_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = KilledBroker(FEW)

    def fail(path: str) -> None:
        if path == "/data":
            raise OSError("the disk is tired")

    monkeypatch.setattr(broker.files, "sync_directory", fail)
    assert all(isinstance(log, OfflineLog) for log in broker.recover().values())


def test_a_start_after_a_clean_stop_syncs_nothing() -> None:
    broker = KilledBroker(MANY)
    broker.stop_cleanly()
    broker.recover()
    assert not {"sync", "sync_directory", "sync_filesystem", "write"} & set(broker.files.calls)


def test_many_logs_of_a_file_system_of_their_own_share_a_sync_of_it() -> None:
    broker = KilledBroker(MANY)
    broker.files.is_own = True
    broker.recover()
    assert broker.files.calls["sync_filesystem"] == 1
    broker.files.lose_power()
    assert all(isinstance(log, PartitionLog) and log.log_end_offset == 1 for log in broker.recover().values())


def test_all_that_share_a_sync_that_fails_are_offline() -> None:
    broker = KilledBroker(LOGS_AT_ONCE)
    broker.files.is_own = True
    broker.files.fail_next("sync_filesystem")
    assert all(isinstance(log, OfflineLog) for log in broker.recover().values())


@pytest.mark.parametrize("clean", [False, True])
def test_a_recovered_log_is_flushed_as_any_other(clean: bool) -> None:
    broker = KilledBroker(FEW)
    if clean:
        broker.stop_cleanly()
    log = broker.recover()[TopicPartition("t", 0)]
    assert isinstance(log, PartitionLog)
    log.append(build_batch([Record(0, 0, None, b"w")]), leader_epoch=0)
    task = log.durability.take_dirty()
    assert task is not None
    task.run()
    log.durability.flushed(task)
    broker.files.lose_power()
    again = broker.recover()[TopicPartition("t", 0)]
    assert isinstance(again, PartitionLog)
    assert again.log_end_offset == 2


def test_what_was_durable_with_the_recovery_point_is_not_synced_again() -> None:
    broker = KilledBroker(FEW)
    broker.recover()
    assert broker.files.calls["sync"] == 3 * FEW  # whose log it is, its epochs, and the log
    broker.found = [(topic_partition, StoredOffsets(1, 0, clean=False)) for topic_partition, _ in broker.found]
    broker.files.calls.clear()
    broker.recover()
    assert broker.files.calls["sync"] == FEW
