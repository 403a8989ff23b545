"""Up to where each reader may see, and who is told when that moves."""

from __future__ import annotations

import pytest

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.replication.local_replica import ANY_SIZE_BYTES, LocalReplica
from flowstone.replication.readers import Reader, consumer
from tests.support.partitions import Flusher, a_batch
from tests.unit.replication.replicas import ReplicaWorld, Watcher, leader_bytes


class Transaction:
    """A transaction that is undecided from an offset on."""

    def __init__(self) -> None:
        self.first_offset: int | None = None

    def last_stable_offset(self, high_watermark: int) -> int:
        return high_watermark if self.first_offset is None else min(self.first_offset, high_watermark)


@pytest.fixture
def transaction(monkeypatch: pytest.MonkeyPatch) -> Transaction:
    found = Transaction()
    monkeypatch.setattr(
        PartitionLog, "last_stable_offset", lambda _, high_watermark: found.last_stable_offset(high_watermark)
    )
    return found


@pytest.fixture
def world(transaction: Transaction) -> ReplicaWorld:
    """A leader with five records: four are committed, and three of them decided."""
    world = ReplicaWorld()
    for _ in range(5):
        world.append()
    world.flush()
    transaction.first_offset = 3
    world.fetch(2, 4)
    world.fetch(3, 4)
    return world


def test_each_reader_sees_up_to_another_offset(world: ReplicaWorld) -> None:
    assert {each: world.partition.local.visible_end(each) for each in Reader} == {
        Reader.UNCOMMITTED: 4,
        Reader.COMMITTED: 3,
        Reader.REPLICA: 5,
    }


@pytest.mark.parametrize(("reader", "count"), [(Reader.UNCOMMITTED, 4), (Reader.COMMITTED, 3), (Reader.REPLICA, 5)])
def test_a_read_ends_where_the_reader_may_see_up_to(world: ReplicaWorld, reader: Reader, count: int) -> None:
    found = world.partition.local.read_as(reader, 0, 1 << 20, at_least_one=True)
    assert found is not None
    assert len(found) == count * len(a_batch())


def test_there_is_nothing_to_read_beyond_what_a_reader_may_see(world: ReplicaWorld) -> None:
    assert world.partition.local.read_as(Reader.COMMITTED, 3, 1 << 20, at_least_one=True) is None


def test_without_transactions_read_committed_consumers_hear_the_size_of_each_commit(transaction: Transaction) -> None:
    world, watcher = ReplicaWorld(), Watcher()
    world.partition.local.watchers(Reader.COMMITTED).watch(watcher)
    world.append()
    world.flush()
    world.fetch(2, 1)
    world.fetch(3, 1)
    assert watcher.size_bytes == len(a_batch())


def test_read_committed_consumers_do_not_hear_of_undecided_records(world: ReplicaWorld) -> None:
    committed, uncommitted = Watcher(), Watcher()
    world.partition.local.watchers(Reader.COMMITTED).watch(committed)
    world.partition.local.watchers(Reader.UNCOMMITTED).watch(uncommitted)
    world.fetch(2, 5)
    world.fetch(3, 5)
    assert (committed.size_bytes, uncommitted.size_bytes) == (0, len(a_batch()))


def test_read_committed_consumers_hear_of_a_decision_whatever_its_size(
    world: ReplicaWorld, transaction: Transaction
) -> None:
    watcher = Watcher()
    world.partition.local.watchers(Reader.COMMITTED).watch(watcher)
    transaction.first_offset = None
    world.fetch(2, 5)
    world.fetch(3, 5)
    assert watcher.size_bytes == ANY_SIZE_BYTES


def test_read_committed_consumers_hear_of_a_decision_that_moves_no_high_watermark(
    world: ReplicaWorld, transaction: Transaction
) -> None:
    watcher = Watcher()
    world.partition.local.watchers(Reader.COMMITTED).watch(watcher)
    transaction.first_offset = None
    world.partition.log_start_moved()
    world.partition.log_start_moved()
    assert watcher.size_bytes == ANY_SIZE_BYTES


@pytest.mark.parametrize(
    ("isolation_level", "reader"), [(0, Reader.UNCOMMITTED), (1, Reader.COMMITTED), (7, Reader.UNCOMMITTED)]
)
def test_the_isolation_level_says_what_a_consumer_reads(isolation_level: int, reader: Reader) -> None:
    assert consumer(isolation_level) is reader


def test_a_partition_that_had_no_space_says_once_that_it_takes_records_again(caplog: pytest.LogCaptureFixture) -> None:
    world = ReplicaWorld()
    world.partition.local.append_refused(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space is left"))
    for _ in range(3):
        world.append()
    assert not world.partition.local.is_full
    assert [each.message.rpartition("accepts ")[2] for each in caplog.records] == [
        "no records for now: no space is left",
        "records again",
    ]


def test_damage_in_the_index_of_aborted_transactions_takes_the_replica_offline(
    world: ReplicaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = world.partition.local
    records = local.read_as(Reader.COMMITTED, 0, 1 << 20, at_least_one=True)
    assert records is not None
    assert local.aborted_transactions(0, 3, records) == []

    def fail(*_: object) -> list[object]:
        raise StorageFault("the index is damaged")

    monkeypatch.setattr(PartitionLog, "aborted_transactions", fail)
    with pytest.raises(ApiError) as refused:
        local.aborted_transactions(0, 3, records)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert local.fault is not None


def test_a_replica_whose_log_has_moved_flushes_with_the_new_directorys_flusher() -> None:
    world, flusher = ReplicaWorld(leader=2), Flusher()
    world.partition.moved(flusher)
    world.follow(leader_bytes(1))
    assert flusher.asked == [world.log]
    world.decide(leader=1, leader_epoch=4)
    world.append()
    assert flusher.asked == [world.log, world.log]
    assert world.flusher.asked == []


def test_a_move_commits_what_its_last_flush_has_made_durable() -> None:
    world, flushed = ReplicaWorld(isr=(1,), replicas=(1,)), list[ErrorCode]()
    outcome = world.append()
    world.partition.local.when_flushed(1, flushed.append)
    task = world.log.durability.take_dirty()
    assert task is not None
    task.run()
    world.log.durability.flushed(task)
    assert outcome == flushed == []
    world.partition.moved(Flusher())
    assert outcome == flushed == [ErrorCode.NONE]


def test_an_offline_or_closed_replica_answers_reads_and_waits_with_its_error() -> None:
    world, told = ReplicaWorld(), list[ErrorCode]()
    world.append()
    world.partition.local.when_flushed(1, told.append)
    world.partition.local.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.partition.local.is_closed
    world.partition.local.when_flushed(0, told.append)
    with pytest.raises(ApiError) as refused:
        world.partition.local.read(0, 1 << 20, 1, at_least_one=True)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.partition.local.fail(StorageFault("the disk is gone"))
    world.partition.local.fail(StorageFault("again"))
    with pytest.raises(ApiError, match="the disk is gone") as refused:
        world.partition.local.read(0, 1 << 20, 1, at_least_one=True)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_waiting_for_a_flush_ends_when_the_position_reaches_the_offset() -> None:
    world, told = ReplicaWorld(), list[int]()
    for offset in (1, 2):
        world.append()
        world.partition.local.when_flushed(offset, lambda code, at=offset: told.append(at))  # type: ignore[misc]
    world.flush()
    assert told == [1, 2]
    world.partition.local.when_flushed(2, lambda code: told.append(2))
    assert told == [1, 2, 2]
    world.partition.local.when_flushed(3, lambda code: told.append(3))
    assert told == [1, 2, 2]


def test_a_full_disk_is_reported_once_and_only_for_lack_of_space(caplog: pytest.LogCaptureFixture) -> None:
    full: list[PartitionLog] = []
    world = ReplicaWorld()
    local = LocalReplica(world.log, Flusher(), lambda log, fault: None, full.append)
    local.append_refused(ApiError(ErrorCode.INVALID_RECORD, "no key"))
    assert (local.is_full, full, caplog.records) == (False, [], [])
    for _ in range(2):
        local.append_refused(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space"))
    assert (local.is_full, full, len(caplog.records)) == (True, [world.log] * 2, 1)


def test_the_high_watermark_moves_up_only_and_not_while_the_replica_is_offline() -> None:
    local = (world := ReplicaWorld()).partition.local
    for _ in range(3):
        world.append()
    local.commit(2)
    local.commit(1)
    assert local.high_watermark.offset == 2
    local.fail(StorageFault("the disk is gone"))
    local.commit(3)
    assert local.high_watermark.offset == 2


def test_read_committed_consumers_that_come_later_hear_of_what_is_new_alone(transaction: Transaction) -> None:
    world, watcher = ReplicaWorld(), Watcher()
    world.append()
    world.flush()
    for node_id in (2, 3):
        world.fetch(node_id, 1)
    world.partition.local.watchers(Reader.COMMITTED).watch(watcher)
    world.partition.local.tell_stable_readers()
    assert watcher.size_bytes == 0
    world.append()
    world.flush()
    for node_id in (2, 3):
        world.fetch(node_id, 2)
    assert watcher.size_bytes == len(a_batch())
