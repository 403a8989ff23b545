from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from flowstone.config import LONG_MAX, BrokerConfig, TopicConfig
from flowstone.errors import ApiError, StartupError, StorageFault
from flowstone.log.lifecycle.stored_offsets import StoredOffsets
from flowstone.log.manager import LogManager, OfflineLog
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch, parse_header

FIRST, SECOND = TopicPartition("first", 0), TopicPartition("second", 1)
TOPIC_ID, OTHER_ID = b"1" * 16, b"2" * 16
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100, file_delete_delay_ms=60_000)


class Broker:
    """A log directory that is opened, used, stopped, killed and opened again."""

    def __init__(self, path: str = "/data") -> None:
        self.files: Any = SimulatedFiles()
        self.clock = SimulatedClock()
        self.broker_clock: Any = self.clock
        self.config = BrokerConfig(log_dirs=path)
        self.faults: list[StorageFault] = []

    def open(self, **more: Any) -> LogManager:
        self.flushed = asyncio.Event()
        self.failed = asyncio.Event()
        self.logs = LogManager(
            self.files,
            self.broker_clock,
            self.config,
            on_flushed=lambda log: self.flushed.set(),
            on_fault=self.fail,
            high_watermark_of=lambda log: log.recovery_point,
            **more,
        )
        return self.logs

    def fail(self, fault: StorageFault) -> None:
        self.faults.append(fault)
        self.failed.set()

    def log(self, topic_partition: TopicPartition = FIRST, topic_id: bytes = TOPIC_ID) -> PartitionLog:
        return self.logs.get_or_create(topic_partition, topic_id, CONFIG)

    def append(self, log: PartitionLog, count: int = 1) -> int:
        records = [Record(at, self.clock.time_ms(), b"k", b"v" * 50) for at in range(count)]
        return log.append(build_batch(records), leader_epoch=0).base_offset

    async def flush(self, log: PartitionLog) -> None:
        self.flushed.clear()
        self.logs.directories[0].flusher.request(log)
        while log.recovery_point < log.log_end_offset:
            self.flushed.clear()
            await asyncio.wait_for(self.flushed.wait(), 10)

    async def settle(self) -> None:
        """Until the worker thread has done what it was given."""
        await asyncio.wrap_future(self.logs.directories[0].housekeeping._worker.submit(int))

    def names(self) -> list[str]:
        return [name for name in self.files.names(self.config.log_dirs) if name[0] != "."]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


def test_a_clean_stop_keeps_every_log(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        for topic_partition in (FIRST, SECOND):
            for _ in range(30):
                broker.append(broker.log(topic_partition))
        broker.logs.close()
        broker.files.lose_power()
        broker.open()
        assert {log.topic_partition: log.log_end_offset for log in broker.logs.logs.values()} == {FIRST: 30, SECOND: 30}
        broker.logs.close()

    run(body)


def test_a_killed_broker_keeps_what_was_flushed_through_a_power_loss(broker: Broker) -> None:
    async def body() -> None:
        log = broker.open().get_or_create(FIRST, TOPIC_ID, CONFIG)
        for _ in range(30):
            broker.append(log)
        await broker.flush(log)
        broker.append(log)
        broker.logs.abort()
        broker.files.lose_power()
        assert broker.open().logs[FIRST].log_end_offset == 30
        broker.logs.close()

    run(body)


def test_there_is_no_clean_marker_while_the_broker_runs(broker: Broker) -> None:
    async def body() -> None:
        broker.open().close()
        assert broker.files.exists("/data/.kafka_cleanshutdown")
        broker.open()
        assert not broker.files.exists("/data/.kafka_cleanshutdown")
        broker.logs.close()

    run(body)


def test_a_directory_in_use_is_refused(broker: Broker) -> None:
    async def body() -> None:
        logs = broker.open()
        with pytest.raises(StartupError, match="in use by another process"):
            broker.open()
        logs.close()

    run(body)


def test_another_nodes_directory_is_refused(broker: Broker) -> None:
    async def body() -> None:
        broker.open().close()
        broker.config = dataclasses.replace(broker.config, node_id=2)
        with pytest.raises(StartupError, match=r"belongs to node 1, this broker's node\.id is 2"):
            broker.open()

    run(body)


def test_another_clusters_directory_is_refused(broker: Broker) -> None:
    async def body() -> None:
        broker.open(cluster_id="ours").close()
        with pytest.raises(StartupError, match="belongs to cluster ours, this broker's is theirs"):
            broker.open(cluster_id="theirs")
        broker.open(cluster_id="ours").close()

    run(body)


def test_a_damaged_identity_is_refused(broker: Broker) -> None:
    async def body() -> None:
        broker.open().close()
        broker.files.replace("/data/meta.properties", b"nonsense")
        with pytest.raises(StartupError, match=r"meta\.properties is damaged"):
            broker.open()

    run(body)


def test_a_directory_keeps_its_identity(broker: Broker) -> None:
    async def body() -> None:
        identity = broker.open().identity
        broker.logs.close()
        assert broker.open().identity == identity
        assert identity.cluster_id
        broker.logs.close()

    run(body)


def test_a_log_without_an_append_leaves_no_directory(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.log()
        broker.logs.close()
        assert "first-0" not in broker.names()

    run(body)


def test_a_damaged_partition_stays_offline_and_the_others_serve(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        for topic_partition in (FIRST, SECOND):
            broker.append(broker.log(topic_partition))
        broker.logs.close()
        broker.files.open("/data/first-0/00000000000000000000.log").truncate(70)
        broker.open()
        assert broker.log(SECOND).log_end_offset == 1
        with pytest.raises(StorageFault, match="first-0"):
            broker.log(FIRST)
        broker.logs.close()

    run(body)


def test_an_offline_partition_is_still_damaged_at_the_next_start(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.logs.close()
        broker.files.open("/data/first-0/00000000000000000000.log").truncate(70)
        for _ in range(3):
            broker.open()
            assert FIRST in broker.logs.offline
            broker.logs.close()
        assert broker.files.size("/data/first-0/00000000000000000000.log") == 70

    run(body)


def test_a_deleted_partition_is_removed_at_once_and_its_files_later(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.logs.delete(FIRST)
        assert [name.endswith("-delete") for name in broker.names() if name.startswith("first")] == [True]
        broker.clock.advance(61)
        await broker.settle()
        assert not [name for name in broker.names() if name.startswith("first")]
        broker.logs.close()

    run(body)


def test_a_topic_made_again_begins_at_zero_and_survives_a_crash(broker: Broker) -> None:
    """Its name stood in the checkpoints with the old topic's offsets."""

    async def body() -> None:
        broker.open()
        for _ in range(50):
            broker.append(broker.log())
        await broker.flush(broker.log())
        await broker.logs.directories[0].housekeeping.checkpoint()
        broker.logs.delete(FIRST)
        await broker.logs.wait_forgotten()
        log = broker.log(topic_id=OTHER_ID)
        assert broker.append(log) == 0
        await broker.flush(log)
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert broker.log(topic_id=OTHER_ID).log_end_offset == 1
        broker.logs.close()

    run(body)


def test_a_deletion_does_not_wait_for_the_disk_and_leaves_nothing_to_remember(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        worker_is_free = threading.Event()
        broker.logs.directories[0].housekeeping.in_background(lambda: worker_is_free.wait(10) and None)
        broker.logs.delete(FIRST)
        freed = broker.logs.free_name(FIRST, OTHER_ID)
        assert freed is not None
        await asyncio.sleep(0)
        assert not freed.done()
        worker_is_free.set()
        await asyncio.wait_for(freed, 10)
        assert broker.logs.free_name(FIRST, OTHER_ID) is None
        assert broker.append(broker.log(topic_id=OTHER_ID)) == 0
        broker.logs.close()

    run(body)


def test_deletions_of_one_turn_of_the_loop_share_a_checkpoint(broker: Broker) -> None:
    async def body() -> None:
        logs = broker.open()
        topic_partitions = [TopicPartition("many", index) for index in range(20)]
        for topic_partition in topic_partitions:
            broker.append(broker.log(topic_partition))
        for topic_partition in topic_partitions:
            logs.delete(topic_partition)
        assert len({logs.free_name(topic_partition, OTHER_ID) for topic_partition in topic_partitions}) == 1
        logs.close()

    run(body)


def test_a_partition_that_cannot_be_deleted_keeps_its_name_taken(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log(), 5)
        broker.files.fail_next("rename", times=2)
        with pytest.raises(StorageFault, match="cannot be deleted"):
            broker.logs.delete(FIRST)
        with pytest.raises(StorageFault, match="cannot be deleted"):
            broker.logs.free_name(FIRST, OTHER_ID)
        freed = broker.logs.free_name(FIRST, OTHER_ID)  # the disk is well again
        assert freed is not None
        await freed
        assert broker.log(topic_id=OTHER_ID).log_end_offset == 0
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_next_start_removes_what_a_crash_left_of_a_deleted_topic(broker: Broker, is_damaged: bool) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log(FIRST, TOPIC_ID))
        broker.append(broker.log(SECOND, OTHER_ID))
        broker.logs.close()
        if is_damaged:
            broker.files.remove("/data/first-0/00000000000000000000.log")
        broker.open().delete_strays({OTHER_ID})
        assert list(broker.logs.logs) == [SECOND]
        assert not broker.logs.offline
        await broker.logs.wait_forgotten()
        assert [name.endswith("-delete") for name in broker.names() if name.startswith("first")] == [True]
        broker.clock.advance(61)
        await broker.settle()
        assert not [name for name in broker.names() if name.startswith("first")]
        broker.logs.close()

    run(body)


def test_a_log_that_does_not_say_whose_it_is_is_no_stray(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.logs.close()
        broker.files.remove("/data/first-0/partition.metadata")
        broker.open().delete_strays(set())
        assert list(broker.logs.logs) == [FIRST]
        broker.logs.close()

    run(body)


def test_what_an_earlier_topic_of_that_name_left_is_never_used(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log(), 5)
        broker.logs.close()
        broker.open()
        freed = broker.logs.free_name(FIRST, OTHER_ID)
        assert freed is not None
        await freed
        assert broker.log(topic_id=OTHER_ID).log_end_offset == 0
        broker.logs.close()

    run(body)


def test_a_log_whose_topic_id_was_lost_gets_it_back(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log(), 5)
        broker.logs.close()
        broker.files.remove("/data/first-0/partition.metadata")
        broker.open()
        assert broker.log().log_end_offset == 5
        broker.logs.close()
        broker.open()
        assert broker.logs.logs[FIRST].topic_id == TOPIC_ID
        broker.logs.close()

    run(body)


def test_leftovers_of_deleted_partitions_go_at_the_next_start(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.logs.delete(FIRST)
        broker.logs.close()
        broker.open()
        await broker.settle()
        assert not [name for name in broker.names() if name.startswith("first")]
        broker.logs.close()

    run(body)


def test_deleted_records_are_gone_for_good_when_the_call_returns(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        await broker.logs.delete_records_before(log, 33)
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert broker.logs.logs[FIRST].log_start_offset == 33
        broker.logs.close()

    run(body)


@pytest.mark.parametrize(("operation", "error"), [("write", errno.ENOSPC), ("sync", errno.EIO), ("rename", errno.EIO)])
def test_deleting_records_without_a_checkpoint_fails_the_call_and_not_the_log(
    broker: Broker, operation: str, error: int
) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        await broker.settle()
        broker.files.fail_next(operation, error, times=2)
        with pytest.raises(ApiError, match="checkpoints cannot be written"):
            await broker.logs.delete_records_before(broker.log(), 1)
        await broker.logs.delete_records_before(broker.log(), 1)
        broker.logs.close()

    run(body)


def test_old_segments_go_and_their_files_later(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        for _ in range(50):
            broker.append(log)
            broker.clock.advance(10)
        await broker.flush(log)
        log.configure(dataclasses.replace(CONFIG, retention_ms=100_000))
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.log_start_offset == log.segments[0].base_offset > 20
        assert [name for name in broker.files.names(log.path) if name.endswith(".deleted")]
        await broker.flush(log)
        broker.clock.advance(61)
        await broker.settle()
        assert not [name for name in broker.files.names(log.path) if name.endswith(".deleted")]
        broker.logs.close()

    run(body)


def test_a_full_disk_does_not_keep_itself_full(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        await broker.settle()
        log.configure(dataclasses.replace(CONFIG, retention_bytes=500))
        broker.files.fail_next("write", errno.ENOSPC)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.segments[0].base_offset == log.log_start_offset > 20
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert broker.log().log_end_offset == 50
        broker.logs.close()

    run(body)


def test_records_deleted_from_a_topic_that_is_made_anew_meanwhile_leave_the_new_one_alone(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        old = broker.log()
        for _ in range(50):
            broker.append(old)
        await broker.flush(old)
        deleting = asyncio.ensure_future(broker.logs.delete_records_before(old, 50))
        await asyncio.sleep(0)
        broker.logs.delete(FIRST)
        await broker.logs.wait_forgotten()
        new = broker.log(topic_id=OTHER_ID)
        broker.append(new)
        await deleting
        assert "00000000000000000000.log" in broker.files.names(new.path)
        broker.logs.close()

    run(body)


def test_retention_of_a_topic_that_is_made_anew_meanwhile_leaves_the_new_one_alone(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        for _ in range(30):
            broker.append(broker.log(FIRST))
        broker.append(broker.log(SECOND), 3)
        broker.logs.close()
        broker.files.remove("/data/first-0/00000000000000000000.timeindex")  # what has to be made again takes a while
        broker.open()
        broker.clock.advance(CONFIG.retention_ms / 1000 + 1)
        retention = asyncio.ensure_future(broker.logs.directories[0].housekeeping.apply_retention())
        await asyncio.sleep(0)
        broker.logs.delete(SECOND)
        await broker.logs.wait_forgotten()
        new = broker.log(SECOND, OTHER_ID)
        broker.append(new)
        await retention
        assert [name for name in broker.files.names(new.path) if name.endswith(".log")] == ["00000000000000000000.log"]
        broker.logs.close()

    run(body)


def test_a_topic_whose_directory_was_removed_by_hand_can_be_deleted_and_created_again(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.files.remove_tree("/data/first-0")
        broker.logs.delete(FIRST)
        await broker.logs.wait_forgotten()
        assert broker.append(broker.log(topic_id=OTHER_ID)) == 0
        broker.logs.close()

    run(body)


def test_records_without_timestamps_are_as_old_as_their_segment(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        log.append(build_batch([Record(0, -1, b"k", b"v")]), leader_epoch=0)
        await broker.flush(log)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.log_start_offset == 0
        broker.clock.advance(CONFIG.retention_ms / 1000 + 1)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.log_start_offset == 1
        broker.logs.close()

    run(body)


def test_a_log_whose_records_are_all_too_old_continues_at_its_end(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.append(log, 7)
        await broker.flush(log)
        broker.clock.advance(CONFIG.retention_ms / 1000 + 1)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert (log.log_start_offset, log.size_bytes) == (7, 0)
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert broker.append(broker.log()) == 7
        broker.logs.close()

    run(body)


def test_a_log_that_is_not_led_here_loses_nothing_by_age_or_size(broker: Broker) -> None:
    async def body() -> None:
        broker.open(decides_retention=lambda log: False)
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        log.configure(dataclasses.replace(CONFIG, retention_bytes=500))
        broker.clock.advance(CONFIG.retention_ms / 1000 + 1)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert (log.log_start_offset, log.segments[0].base_offset) == (0, 0)
        broker.logs.close()

    run(body)


def test_a_log_that_is_not_led_here_drops_what_lies_below_its_leaders_start(broker: Broker) -> None:
    async def body() -> None:
        broker.open(decides_retention=lambda log: False)
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        log.advance_log_start(30)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert 0 < log.segments[0].base_offset <= 30
        log.advance_log_start(50)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert (log.segments[0].base_offset, log.size_bytes) == (50, 0)
        broker.logs.close()

    run(body)


def test_a_clock_that_jumps_ahead_for_a_moment_deletes_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.append(log, 7)
        await broker.flush(log)
        jumped_ms = CONFIG.retention_ms + 1000
        with monkeypatch.context() as patch:
            patch.setattr(broker.clock, "_start_ms", broker.clock._start_ms + jumped_ms)
            broker.clock.advance(8)
            await broker.logs.directories[0].housekeeping.apply_retention()
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.log_start_offset == 0
        broker.logs.close()

    run(body)


class MachineClock:
    """A simulated clock that the broker does not know for one, and so does not believe without evidence."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


def append_from_another_machine(broker: Broker, log: PartitionLog) -> None:
    """Append seven records with timestamps an hour and a half behind this machine's clock."""
    ahead_ms = CONFIG.retention_ms + 30 * 60_000
    records = [Record(at, broker.clock.time_ms() - ahead_ms, b"k", b"v" * 50) for at in range(7)]
    log.append(build_batch(records), leader_epoch=0)


def test_records_with_the_brokers_own_timestamps_do_not_confirm_its_clock(broker: Broker) -> None:
    async def body() -> None:
        own = TopicPartition("own", 0)
        broker.broker_clock = MachineClock(broker.clock)
        manager = broker.open(stamps_records=lambda log: log.topic_partition == own)
        append_from_another_machine(broker, broker.log())
        broker.append(broker.log(own, bytes(15) + b"7"))
        await broker.flush(broker.log())
        await manager.directories[0].housekeeping.apply_retention()
        assert broker.log().log_start_offset == 0
        assert manager.steady_clock.is_in_doubt
        manager.close()

    run(body)


def test_a_start_does_not_confirm_the_clock_of_the_next_start(broker: Broker) -> None:
    async def body() -> None:
        broker.broker_clock = MachineClock(broker.clock)
        broker.open().close()
        manager = broker.open()
        append_from_another_machine(broker, broker.log())
        await broker.flush(broker.log())
        await manager.directories[0].housekeeping.apply_retention()
        assert broker.log().log_start_offset == 0
        manager.close()

    run(body)


def test_retention_comes_by_itself(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.append(log, 7)
        await broker.flush(log)
        broker.clock.advance(CONFIG.retention_ms / 1000 + 600)
        assert broker.logs.directories[0].housekeeping.retention is not None
        await broker.logs.directories[0].housekeeping.retention
        assert log.log_start_offset == 7
        broker.logs.close()

    run(body)


def test_recovery_points_are_saved_now_and_then(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log(), 9)
        await broker.flush(broker.log())
        broker.clock.advance(61)
        await broker.settle()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            assert broker.files.read(f"/data/{name}") == b"0\n1\nfirst 0 9\n"
        broker.logs.close()

    run(body)


def test_truncation_is_safe_against_a_crash_right_after_it(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        await broker.logs.directories[0].housekeeping.checkpoint()
        await broker.logs.truncate_to(log, 20)
        broker.logs.abort()
        broker.open()
        assert broker.log().log_end_offset == 20
        broker.logs.close()

    run(body)


def test_a_failed_flush_is_reported_and_leaves_no_clean_marker(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.files.fail_next("sync", errno.EIO)
        broker.logs.directories[0].flusher.request(broker.log())
        await asyncio.wait_for(broker.failed.wait(), 10)
        assert len(broker.faults) == 1
        broker.logs.close()
        assert not broker.files.exists("/data/.kafka_cleanshutdown")

    run(body)


def test_it_all_works_on_real_files(tmp_path: Path) -> None:
    async def body() -> None:
        broker = Broker(str(tmp_path / "data"))
        broker.files = SystemFiles()
        for ending in ("close", "abort", "close"):
            broker.open()
            log = broker.log()
            for _ in range(40):
                broker.append(log)
            await broker.flush(log)
            getattr(broker.logs, ending)()
        broker.open()
        log = broker.log()
        assert log.log_end_offset == 120
        offset, batches = 0, 0
        while offset < 120:
            found = log.read(offset, 1, log.end, at_least_one=True)
            assert found is not None
            offset = parse_header(found.read()).next_offset
            batches += 1
        assert batches == 120
        broker.logs.close()

    run(body)


def test_a_log_with_part_of_a_batch_at_its_end_is_checked_at_the_next_start(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.append(log)
        await broker.flush(log)
        file = log.segments[-1].log.get()
        file.write(file.size(), [b"half a batch"])
        broker.files.fail_next("write")
        broker.files.fail_next("truncate")
        with pytest.raises(StorageFault):
            broker.append(log)
        broker.logs.close()
        assert broker.open().offline == {}
        assert broker.log().log_end_offset == 1
        broker.logs.close()

    run(body)


def test_an_offline_partition_does_not_prevent_the_final_flush_of_the_others(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.logs.offline[SECOND] = OfflineLog(TOPIC_ID, StoredOffsets(0, 0, True), StorageFault("damaged"))
        broker.append(log)
        broker.logs.close()
        broker.files.lose_power()
        broker.open()
        assert broker.log().log_end_offset == 1
        broker.logs.close()

    run(body)


def test_what_was_done_later_leaves_nothing_behind(broker: Broker) -> None:
    class Action:
        def __call__(self) -> None:
            done.append(True)

    done: list[bool] = []

    async def body() -> None:
        broker.open()
        action = Action()
        alive = weakref.ref(action)
        broker.logs.directories[0].housekeeping.later(1000, action)
        del action
        broker.clock.advance(2)
        await broker.settle()
        gc.collect()
        assert done == [True]
        assert alive() is None
        broker.logs.close()

    run(body)


def test_retention_is_applied_every_interval(broker: Broker) -> None:
    async def body() -> None:
        broker.config = dataclasses.replace(broker.config, log_retention_check_interval_ms=300_000)
        broker.open()
        housekeeping = broker.logs.directories[0].housekeeping
        for _ in range(2):
            before = housekeeping.retention
            broker.clock.advance(299.875)
            assert housekeeping.retention is before
            broker.clock.advance(0.125)
            assert housekeeping.retention is not before
            assert housekeeping.retention is not None
            await housekeeping.retention
        broker.logs.close()

    run(body)


def stored_offsets(broker: Broker, name: str) -> dict[TopicPartition, int]:
    return broker.logs.directories[0].log_directory.read_offsets(name)


def test_a_recovery_point_is_checkpointed_soon_after_a_segment_was_sealed_and_synced(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.append(log)
        await broker.flush(log)
        broker.clock.advance(5)
        await broker.settle()
        while len(log.segments) < 3:
            broker.append(log)
            await broker.flush(log)
        sealed_end = log.segments.active.base_offset
        broker.clock.advance(1.1)
        await broker.settle()
        assert stored_offsets(broker, "recovery-point-offset-checkpoint")[FIRST] >= sealed_end
        broker.logs.close()

    run(body)


def test_a_sealed_segment_is_synced_even_where_nothing_else_is(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        log.configure(dataclasses.replace(CONFIG, flush_messages=LONG_MAX))
        flusher = broker.logs.directories[0].flusher
        while len(log.segments) < 3:
            broker.append(log)
            flusher.appended(log, 1)
            await asyncio.sleep(0)
        while log.recovery_point < log.segments[1].base_offset:
            broker.flushed.clear()
            await asyncio.wait_for(broker.flushed.wait(), 10)
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert broker.logs.logs[FIRST].log_end_offset >= log.segments[1].base_offset
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a kill"])
def test_a_partition_whose_directory_is_missing_is_offline_until_it_is_given_up(broker: Broker, clean: bool) -> None:
    async def body() -> None:
        broker.open()
        for topic_partition in (FIRST, SECOND):
            broker.append(broker.log(topic_partition))
            await broker.flush(broker.log(topic_partition))
        broker.clock.advance(1.1)
        await broker.settle()
        (broker.logs.close if clean else broker.logs.abort)()
        broker.files.remove_tree("/data/first-0")
        for _ in range(2):  # a start in between changes nothing
            broker.open()
            with pytest.raises(StorageFault, match=r"from offset 0 to 1, but its directory .* is not there"):
                broker.log()
            assert broker.log(SECOND).log_end_offset == 1
            broker.logs.close()
        broker.open()
        broker.logs.give_up_missing(SECOND)
        broker.logs.give_up_missing(FIRST)
        await broker.logs.wait_forgotten()
        assert (broker.log().log_end_offset, broker.log(SECOND).log_end_offset) == (0, 1)
        broker.logs.close()

    run(body)


def test_a_deleted_partition_is_not_missing(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        await broker.flush(broker.log())
        broker.clock.advance(1.1)
        await broker.settle()
        broker.logs.delete(FIRST)
        broker.logs.abort()
        broker.open()
        assert not broker.logs.offline
        broker.logs.close()

    run(body)


def test_a_directory_that_another_program_has_used_is_taken_as_its_checkpoints_say(broker: Broker) -> None:
    """As Kafka would leave it: records gone at the start, its own checkpoints, and our table of before."""

    async def body() -> None:
        broker.open()
        log = broker.log()
        while len(log.segments) < 4:
            broker.append(log)
        begin, end = log.segments[1].base_offset, log.log_end_offset
        broker.logs.close()
        for name in [each for each in broker.files.names("/data/first-0") if each.startswith("0" * 20)]:
            broker.files.remove(f"/data/first-0/{name}")
        directory = broker.logs.directories[0].log_directory
        directory.write_offsets("log-start-offset-checkpoint", {})
        directory.write_offsets("recovery-point-offset-checkpoint", {FIRST: end})
        broker.files.remove("/data/first-0/leader-epoch-checkpoint")
        broker.open()
        assert broker.logs.logs[FIRST].log_start_offset == begin
        broker.logs.close()

    run(body)


def test_retention_on_a_full_disk_leaves_a_log_that_a_start_believes(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        while len(log.segments) < 4:
            broker.append(log)
            broker.clock.advance(10)
        await broker.flush(log)
        await broker.settle()
        log.configure(dataclasses.replace(CONFIG, retention_ms=15_000))
        broker.files.fail_next("rename", errno.ENOSPC)
        await broker.logs.directories[0].housekeeping.apply_retention()
        begin = log.log_start_offset
        assert log.segments[0].base_offset == begin > 0
        broker.files.sync_directory("/data/first-0")
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert not broker.logs.offline
        assert broker.logs.logs[FIRST].log_start_offset == begin
        broker.logs.close()

    run(body)


def test_flushed_bytes_are_counted_anew_after_a_checkpoint(broker: Broker) -> None:
    """Else every flush would be followed by one."""

    async def body() -> None:
        broker.open()
        directory = broker.logs.directories[0]
        log = broker.log()
        broker.append(log)
        await broker.flush(log)
        directory.flusher.flushed_bytes = 1 << 40
        directory.housekeeping.checkpoint_due(log)
        assert directory.flusher.flushed_bytes == 0
        await broker.settle()
        assert directory.log_directory.read_offsets("recovery-point-offset-checkpoint") == {FIRST: 1}
        broker.logs.close()

    run(body)


def test_a_killed_broker_knows_what_it_had_flushed_though_no_checkpoint_says_so(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        broker.append(log)
        await broker.flush(log)
        broker.clock.advance(1.1)
        await broker.settle()
        size_bytes = log.end.position
        broker.append(log)
        await broker.flush(log)
        assert stored_offsets(broker, "recovery-point-offset-checkpoint")[FIRST] == 1
        broker.logs.abort()
        broker.files.open(f"/data/first-0/{0:020d}.log").truncate(size_bytes)
        broker.open()
        with pytest.raises(StorageFault, match="ends at offset 1, but was durable up to offset 2"):
            broker.log()
        broker.logs.close()

    run(body)


def test_retention_keeps_segments_while_nothing_durable_can_say_that_they_went(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        while len(log.segments) < 4:
            broker.append(log)
            broker.clock.advance(10)
        await broker.flush(log)
        await broker.settle()
        log.configure(dataclasses.replace(CONFIG, retention_ms=15_000))
        broker.files.fail_next("write", errno.ENOSPC, times=3)
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.segments[0].base_offset == 0
        broker.files.fail_nothing()
        await broker.logs.directories[0].housekeeping.apply_retention()
        assert log.segments[0].base_offset == log.log_start_offset > 0
        broker.logs.close()

    run(body)
