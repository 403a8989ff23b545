"""The manager of all logs: starts, clean stops, crashes, faults and checkpoints."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import weakref
from pathlib import Path

import pytest

from flowstone.config import LONG_MAX
from flowstone.errors import StartupError, StorageFault
from flowstone.log.lifecycle.stored_offsets import StoredOffsets
from flowstone.log.manager import OfflineLog
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import parse_header
from tests.support.managed_logs import CONFIG, FIRST, SECOND, TOPIC_ID, Broker, broker, run

__all__ = ["broker"]


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
