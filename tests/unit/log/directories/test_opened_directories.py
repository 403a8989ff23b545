"""Several log directories: partitions spread over them, and a disk that fails takes its own with it and no other."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import functools
from collections.abc import Awaitable, Callable, Iterable

import pytest

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.errors import StartupError, StorageFault
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import SimulatedClock
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch
from tests.support.broken_disks import BrokenDisks

FIRST, SECOND = "/disks/a", "/disks/b"
TOPIC_ID, OTHER_ID = b"1" * 16, b"2" * 16
PARTITIONS = [TopicPartition("orders", number) for number in range(4)]


class Broker:
    def __init__(self) -> None:
        self.disks = BrokenDisks()
        self.clock = SimulatedClock()
        self.config = BrokerConfig(log_dirs=f"{FIRST}, {SECOND}")
        self.faults: list[StorageFault] = []
        self._changed = asyncio.Event()

    def open(self) -> LogManager:
        self.logs = LogManager(
            self.disks,
            self.clock,
            self.config,
            on_flushed=lambda log: self._changed.set(),
            on_fault=self._fail,
            high_watermark_of=lambda log: log.recovery_point,
        )
        return self.logs

    def restart(self) -> LogManager:
        self.logs.close()
        return self.open()

    def _fail(self, fault: StorageFault) -> None:
        self.faults.append(fault)
        self._changed.set()

    def log(self, topic_partition: TopicPartition, topic_id: bytes = TOPIC_ID) -> PartitionLog:
        return self.logs.get_or_create(topic_partition, topic_id, TopicConfig())

    def append(self, log: PartitionLog) -> None:
        log.append(build_batch([Record(0, self.clock.time_ms(), None, b"v")]), leader_epoch=0)

    def fill(self, partitions: Iterable[TopicPartition] = PARTITIONS) -> None:
        for topic_partition in partitions:
            self.append(self.log(topic_partition))

    async def flush(self, log: PartitionLog) -> None:
        self.home(log).flusher.request(log)
        await self.until(lambda: log.recovery_point == log.log_end_offset)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 10)

    def home(self, log: PartitionLog) -> DirectoryLogs:
        return self.logs.directory_of(log)

    def on(self, path: str) -> list[TopicPartition]:
        return sorted(each for each, log in self.logs.logs.items() if self.home(log).path == path)


def scenario(body: Callable[[Broker], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(body)
    def test() -> None:
        async def run() -> None:
            broker = Broker()
            broker.open()
            try:
                await body(broker)
            finally:
                broker.logs.abort()

        asyncio.run(run())

    del test.__wrapped__  # type: ignore[attr-defined]
    return test


@scenario
async def test_new_partitions_go_where_the_fewest_are(broker: Broker) -> None:
    broker.fill()
    assert [len(broker.on(path)) for path in (FIRST, SECOND)] == [2, 2]
    for topic_partition in broker.on(FIRST):
        broker.logs.delete(topic_partition)
    broker.fill(TopicPartition("more", number) for number in range(2))
    assert [each.topic for each in broker.on(FIRST)] == ["more", "more"]


@scenario
async def test_partitions_that_are_offline_count_where_the_fewest_are_wanted(broker: Broker) -> None:
    broker.fill()
    damaged, _ = broker.on(SECOND)
    broker.logs.close()
    broker.disks.remove_tree(f"{SECOND}/{damaged}")
    broker.open()
    broker.logs.delete(broker.on(FIRST)[0])
    more = TopicPartition("more", 0)
    broker.fill([more])
    assert damaged in broker.logs.offline
    assert more in broker.on(FIRST)


@scenario
async def test_partitions_stay_where_they_are(broker: Broker) -> None:
    broker.fill()
    before = broker.on(FIRST), broker.on(SECOND)
    broker.restart()
    assert (broker.on(FIRST), broker.on(SECOND)) == before


@scenario
async def test_directories_have_ids_of_their_own_and_know_each_other(broker: Broker) -> None:
    identities = [each.log_directory.identity for each in broker.logs.directories]
    assert all(identities)
    ids = {identity.directory_id for identity in identities if identity is not None}
    assert len(ids) == 2
    assert [set(identity.known_ids) for identity in identities if identity is not None] == [ids, ids]


@scenario
async def test_a_failed_flush_fails_its_directory_and_no_other(broker: Broker) -> None:
    broker.fill()
    broker.disks.break_disk(FIRST)
    hit, other = broker.logs.logs[broker.on(FIRST)[0]], broker.logs.logs[broker.on(SECOND)[0]]
    broker.home(hit).flusher.request(hit)
    await broker.until(lambda: bool(broker.faults))
    await broker.flush(other)
    assert [each.fault is not None for each in broker.logs.directories] == [True, False]
    assert not broker.logs.has_failed


@scenario
async def test_when_all_directories_have_failed_the_broker_has(broker: Broker) -> None:
    for directory in broker.logs.directories:
        directory.fail(StorageFault("gone"))
    assert broker.logs.has_failed
    with pytest.raises(StorageFault, match="no data directory is left"):
        broker.log(PARTITIONS[0])


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_disk_that_takes_no_writes_fails_its_directory(number: int) -> None:
    @scenario
    async def body(broker: Broker) -> None:
        broker.fill()
        log = broker.logs.logs[broker.on(SECOND)[0]]
        broker.disks.break_disk(SECOND, number)
        with pytest.raises(StorageFault) as fault:
            broker.append(log)
        broker.logs.doubt(log, fault.value)
        await broker.until(lambda: broker.home(log).fault is not None)

    body()


@scenario
async def test_a_checkpoint_that_cannot_be_written_gives_a_dead_disk_away(broker: Broker) -> None:
    broker.disks.break_disk(SECOND)
    broker.clock.advance(broker.config.log_flush_offset_checkpoint_interval_ms / 1000 + 1)
    await broker.until(lambda: bool(broker.faults))
    assert [each.fault is not None for each in broker.logs.directories] == [False, True]


@scenario
async def test_trouble_with_one_file_does_not_fail_the_directory(broker: Broker) -> None:
    broker.fill()
    log = broker.logs.logs[PARTITIONS[0]]
    broker.logs.doubt(log, StorageFault("one bad sector"))
    await broker.home(log).housekeeping.in_thread(lambda: None)
    await asyncio.sleep(0)
    assert not broker.faults


@scenario
async def test_a_full_disk_has_not_failed(broker: Broker) -> None:
    broker.disks.break_disk(SECOND, errno.ENOSPC)
    directory = broker.logs.directories[1]
    directory.doubt("no space")
    await directory.housekeeping.in_thread(lambda: None)
    await asyncio.sleep(0)
    assert directory.fault is None


@scenario
async def test_new_partitions_avoid_a_directory_that_has_failed(broker: Broker) -> None:
    broker.logs.directories[0].fail(StorageFault("gone"))
    broker.fill()
    assert broker.on(SECOND) == PARTITIONS


@scenario
async def test_a_topic_in_a_failed_directory_can_be_deleted_and_made_anew(broker: Broker) -> None:
    broker.fill()
    name = broker.on(FIRST)[0]
    broker.logs.directories[0].fail(StorageFault("gone"))
    broker.logs.delete(name)
    assert broker.logs.free_name(name, OTHER_ID) is None
    broker.append(broker.log(name, OTHER_ID))
    broker.restart().delete_strays({OTHER_ID})
    assert {broker.home(log).path for log in broker.logs.logs.values() if log.topic_id == OTHER_ID} == {SECOND}


# Starting without one


@scenario
async def test_a_broker_starts_without_a_broken_disk_and_its_partitions_are_offline(broker: Broker) -> None:
    broker.fill()
    hit, others = broker.on(FIRST), broker.on(SECOND)
    broker.logs.close()
    broker.disks.break_disk(FIRST)
    broker.open().expect((each, TOPIC_ID) for each in PARTITIONS)
    assert broker.on(SECOND) == others
    assert sorted(broker.logs.offline) == hit
    assert list(broker.logs.unusable) == [FIRST]
    with pytest.raises(StorageFault, match="without a data directory that may have it: /disks/a"):
        broker.log(hit[0])


@scenario
async def test_what_is_created_while_a_directory_is_missing_is_served(broker: Broker) -> None:
    broker.logs.close()
    broker.disks.break_disk(FIRST)
    broker.open().expect([])
    broker.fill()
    assert broker.on(SECOND) == PARTITIONS


@scenario
async def test_a_directory_that_is_back_brings_its_partitions_back(broker: Broker) -> None:
    broker.fill()
    broker.logs.close()
    broker.disks.break_disk(FIRST)
    broker.open()
    broker.logs.close()
    broker.disks.mend(FIRST)
    broker.open()
    assert sorted(broker.logs.logs) == PARTITIONS
    assert not broker.logs.is_incomplete


@scenario
async def test_a_broker_without_any_good_directory_does_not_start(broker: Broker) -> None:
    logs = broker.logs
    logs.close()
    broker.disks.break_disk("/disks")
    with pytest.raises(StartupError, match=r"/disks/a cannot be used.*; .*/disks/b cannot be used"):
        broker.open()


@scenario
async def test_a_damaged_identity_keeps_one_directory_out(broker: Broker) -> None:
    broker.logs.close()
    broker.disks.replace(f"{SECOND}/meta.properties", b"nonsense")
    broker.open()
    assert [each.path for each in broker.logs.directories] == [FIRST]
    assert "meta.properties is damaged" in str(broker.logs.unusable[SECOND])


@scenario
async def test_an_empty_directory_in_the_place_of_a_missing_one_is_not_touched(broker: Broker) -> None:
    """The disk is not mounted: what would be written there is on another disk, and hides what was."""
    broker.fill()
    broker.logs.close()
    broker.disks.remove_tree(SECOND)
    broker.disks.make_directory(SECOND)
    broker.open().expect((each, TOPIC_ID) for each in PARTITIONS)
    assert broker.disks.names(SECOND) == []
    assert len(broker.logs.offline) == 2
    assert "is empty, and the one with id" in str(broker.logs.unusable[SECOND])


@scenario
async def test_a_directory_that_was_taken_out_leaves_its_partitions_offline(broker: Broker) -> None:
    broker.fill()
    hit = broker.on(SECOND)
    broker.logs.close()
    broker.config = dataclasses.replace(broker.config, log_dirs=FIRST)
    broker.open().expect((each, TOPIC_ID) for each in PARTITIONS)
    assert sorted(broker.logs.offline) == hit


@scenario
async def test_a_directory_can_be_added(broker: Broker) -> None:
    broker.fill()
    broker.logs.close()
    broker.config = dataclasses.replace(broker.config, log_dirs=f"{FIRST},{SECOND},/disks/c")
    broker.open().expect((each, TOPIC_ID) for each in PARTITIONS)
    broker.fill([TopicPartition("more", 0)])
    assert broker.on("/disks/c") == [TopicPartition("more", 0)]
    assert not broker.logs.offline


@scenario
async def test_a_new_broker_does_not_start_on_part_of_its_directories(broker: Broker) -> None:
    broker.logs.close()
    for path in (FIRST, SECOND):
        broker.disks.remove_tree(path)
    broker.disks.break_disk(SECOND)
    with pytest.raises(StartupError, match="/disks/b cannot be used"):
        broker.open()
    broker.disks.mend(SECOND)
    broker.open()


@scenario
async def test_directories_of_two_clusters_are_refused(broker: Broker) -> None:
    broker.logs.close()
    broker.disks.replace(f"{SECOND}/meta.properties", b"version=1\ncluster.id=other\nnode.id=1\n")
    with pytest.raises(StartupError, match="/disks/b belongs to cluster other, /disks/a to"):
        broker.open()
    broker.disks.remove_tree(SECOND)
    broker.config = dataclasses.replace(broker.config, log_dirs=FIRST)
    broker.open()


@scenario
async def test_a_returning_disk_loses_the_logs_of_topics_deleted_while_it_was_missing(broker: Broker) -> None:
    broker.fill()
    broker.logs.close()
    broker.disks.break_disk(FIRST)
    broker.open()
    broker.fill([TopicPartition("later", 0)])
    for topic_partition in PARTITIONS:
        broker.logs.delete(topic_partition)
    broker.logs.close()
    broker.disks.mend(FIRST)
    broker.open().delete_strays({OTHER_ID})
    assert not broker.logs.logs.keys() & set(PARTITIONS)


@scenario
async def test_a_partition_that_is_in_two_directories_stays_offline(broker: Broker) -> None:
    broker.fill()
    name = broker.on(FIRST)[0]
    broker.logs.close()
    broker.disks.make_directory(f"{SECOND}/{name}")
    for file in broker.disks.names(f"{FIRST}/{name}"):
        broker.disks.replace(f"{SECOND}/{name}/{file}", broker.disks.read(f"{FIRST}/{name}/{file}"))
    broker.open()
    with pytest.raises(StorageFault, match="is in /disks/a and in /disks/b"):
        broker.log(name)
