"""What a clean stop leaves in one file: the same logs as their own files give, and only while nobody changed those."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.log.lifecycle import clean_stop_state
from flowstone.log.lifecycle.clean_stop_state import LeftLog, decode_clean_state, describe, encode_clean_state, reopen
from flowstone.log.lifecycle.directory_identity import CLEAN_SHUTDOWN_MARKER, CLEAN_STATE
from flowstone.log.lifecycle.directory_recovery import DirectoryRecovery
from flowstone.log.lifecycle.stored_offsets import StoredOffsets
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.branch_point import BranchPoint
from flowstone.log.segments.cached_reads import wait_for
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.types import TopicPartition
from flowstone.wire.end_markers import end_marker
from flowstone.wire.record_batch import Record, build_batch

TOPIC_PARTITION = TopicPartition("orders", 3)  # of the world


def left_by(world: Any) -> LeftLog:
    """What the next start reads after a clean stop."""
    world.stop_cleanly()
    left = decode_clean_state(encode_clean_state([(TOPIC_PARTITION, describe(world.log))]))
    return left[TOPIC_PARTITION]


def reopened(world: Any, left: LeftLog) -> PartitionLog | None:
    log = world.new_log(exists=True)
    return log if reopen(log, world.partition_directory, world.handles, world.clock, left) else None


def facts(log: PartitionLog) -> dict[str, Any]:
    """All of a log but for when its segments were taken up."""
    active = log.segments.active
    indexes: list[Any] = [active.indexes.offsets, active.indexes.times]
    return {
        "topic": (log.topic_id, log.branch_point),
        "ends": (log.log_start_offset, log.end, log.flushed_end),
        "segments": [(each.base_offset, each.size_bytes, each.log.path) for each in log.segments],
        "active": active.left(),
        "entries": [(list(each.keys), list(each.values)) for each in indexes],
        "newest": (active.indexes.newest_timestamp, active.indexes.newest_offset),
        "sealed": [(len(each.indexes.offsets or ""), len(each.indexes.times or "")) for each in log.segments[:-1]],
        "aborts": [(wait_for(each.transactions.read), each.transactions.has_file) for each in log.segments],
        "stable": log.last_stable_offset(log.log_end_offset),
        "epochs": log.epochs.entries(),
        "producers": log.producers.encode_snapshot(),
        "beside": (log.directory.snapshots, log.directory.hole_ends, log.directory.has_unsynced),
    }


def fill(world: Any, seed: int) -> None:
    """Batches of several producers, or none, in rising epochs, over some segments; a truncation now and then."""
    chance, sequences, epoch = random.Random(seed), dict[int, int](), 0
    for _ in range(chance.randrange(40)):
        producer_id, count = chance.choice([-1, 5, 7, 8, 9]), chance.randint(1, 4)
        epoch += chance.random() < 0.1
        if producer_id == 5 and chance.random() < 0.5:
            marker = end_marker(producer_id, 0, 3, chance.random() < 0.5, world.clock.time_ms())
            world.log.append(marker, leader_epoch=epoch, is_own=True)
        elif producer_id == 5:
            batch = world.batch(count, producer_id=producer_id, producer_epoch=0, is_transactional=True)
            world.log.append(batch, leader_epoch=epoch, is_own=True)
        elif producer_id < 0:
            world.append(count, epoch=epoch)
        else:
            sequence = sequences.get(producer_id, 0)
            world.append(count, epoch=epoch, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            sequences[producer_id] = sequence + count
        world.clock.advance(chance.random())
    if world.log.exists and chance.random() < 0.3:
        world.flush()
        world.log.advance_log_start(chance.randint(0, world.log.log_end_offset))
        if world.log.log_start_offset < world.log.log_end_offset:
            world.truncate_to(chance.randrange(world.log.log_start_offset, world.log.log_end_offset))


@pytest.mark.parametrize("seed", range(60))
def test_a_log_is_reopened_as_its_own_files_give_it(make_world: Callable[[], Any], seed: int) -> None:
    world = make_world()
    fill(world, seed)
    if not world.log.exists:
        world.append()
    for path in world.log.drop_segments():
        world.files.remove(path)
    left = left_by(world)
    log = reopened(world, left)
    assert log is not None
    found = facts(log)
    assert found == facts(world.reopen(clean=True))
    recovered = world.read_all()
    world.log = log
    assert world.read_all() == recovered
    assert world.append(3, epoch=99).base_offset == left.end_offset


def test_the_second_stop_of_an_unused_log_has_nothing_to_write(world: Any) -> None:
    world.append()
    log = reopened(world, left_by(world))
    assert log is not None
    assert log.closing_task() is None
    assert facts(log) == facts(world.reopen(clean=True))


def test_the_second_stop_of_a_log_that_was_used_makes_it_durable(world: Any) -> None:
    world.append()
    log = reopened(world, left_by(world))
    assert log is not None
    world.log = log
    world.append()
    left = left_by(world)
    world.files.lose_power()
    assert world.reopen(clean=True).log_end_offset == left.end_offset == 2


def test_a_branch_knows_its_source_again(world: Any) -> None:
    world.append()
    point = BranchPoint("source", b"s" * 16, 1)
    world.log.branch_point = point
    world.log.directory.store_branch_point(point)
    log = reopened(world, left_by(world))
    assert log is not None
    assert log.branch_point == point


def overwrite(world: Any) -> None:
    world.damage(world.names(".log")[-1], lambda data: data.__setitem__(70, data[70] ^ 1))


def overwrite_sealed(world: Any) -> None:
    world.damage(world.names(".log")[0], lambda data: data.__setitem__(70, data[70] ^ 1))


def shorten(world: Any) -> None:
    world.damage(world.names(".log")[-1], lambda data: data.__delitem__(slice(-1, None)))


def remove_index(world: Any) -> None:
    world.files.remove(f"{world.path}/{world.names('.index')[0]}")


def add_file(world: Any) -> None:
    world.files.open(f"{world.path}/{99:020d}.log", create=True)


def remove_all(world: Any) -> None:
    world.files.remove_tree(world.path)


@pytest.mark.parametrize("change", [overwrite, overwrite_sealed, shorten, remove_index, add_file, remove_all])
def test_a_log_changed_by_another_program_is_not_opened_from_the_state(
    world: Any, change: Callable[[Any], None]
) -> None:
    for _ in range(30):
        world.append()
    left = left_by(world)
    change(world)
    assert reopened(world, left) is None


def test_a_log_whose_index_is_only_in_memory_is_left_to_recovery(world: Any) -> None:
    for _ in range(30):
        world.append()
    world.stop_cleanly()
    first = world.log.segments[0]
    first.indexes.offsets = None
    assert describe(world.log) is None


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned", ".swap", ".tmp"])
def test_a_log_with_files_to_be_removed_is_left_to_recovery(world: Any, suffix: str) -> None:
    world.append()
    world.stop_cleanly()
    world.files.open(f"{world.path}/{0:020d}.index{suffix}", create=True)
    assert describe(world.log) is None


def test_a_log_that_is_not_durable_is_left_to_recovery(world: Any) -> None:
    world.append()
    assert describe(world.log) is None


@pytest.mark.parametrize("length", [0, 1, 20, 60, -1])
def test_a_file_that_is_cut_short_says_nothing(world: Any, length: int) -> None:
    world.append()
    world.stop_cleanly()
    data = encode_clean_state([(TOPIC_PARTITION, describe(world.log))])
    assert list(decode_clean_state(data)) == [TOPIC_PARTITION]
    assert decode_clean_state(data[:length]) == {}


def test_no_flipped_bit_is_believed(world: Any) -> None:
    world.append()
    world.stop_cleanly()
    data = encode_clean_state([(TOPIC_PARTITION, describe(world.log))])
    for at in range(len(data)):
        assert decode_clean_state(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) == {}


def test_logs_beyond_the_bound_are_left_out(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(10):
        world.append()
    world.stop_cleanly()
    left = describe(world.log)
    assert left is not None
    monkeypatch.setattr(clean_stop_state, "CLEAN_STATE_BYTES_MAX", sum(map(len, left.parts)))
    other = TopicPartition("other", 0)
    assert list(decode_clean_state(encode_clean_state([(TOPIC_PARTITION, left), (other, left)]))) == [TOPIC_PARTITION]


@pytest.mark.parametrize("stored", [StoredOffsets(1, 0, clean=True), StoredOffsets(2, 1, clean=True)])
def test_checkpoints_that_say_something_else_are_believed(world: Any, stored: StoredOffsets) -> None:
    world.append()
    world.append()
    left = {TOPIC_PARTITION: left_by(world)}
    recovering = DirectoryRecovery(world.files, "/data", world.handles, world.clock, lambda _topic: world.config, left)
    (found,) = dict(recovering.recover([(TOPIC_PARTITION, stored)])).values()
    assert isinstance(found, PartitionLog)
    assert found.log_start_offset == stored.log_start_offset


class Broker:
    """A data directory with a log or two, opened, stopped, killed and opened again."""

    def __init__(self) -> None:
        self.files = CountingFiles()
        self.clock = SimulatedClock()

    def open(self) -> LogManager:
        self.files.opened.clear()
        self.logs = LogManager(
            self.files,
            self.clock,
            BrokerConfig(log_dirs="/data"),
            on_flushed=lambda log: None,
            on_fault=lambda fault: None,
            high_watermark_of=lambda log: log.recovery_point,
        )
        return self.logs

    def append(self) -> None:
        log = self.logs.get_or_create(TOPIC_PARTITION, b"1" * 16, TopicConfig())
        log.append(build_batch([Record(0, 0, None, b"v")]), leader_epoch=0)

    def end_offset(self) -> int:
        return self.logs.logs[TOPIC_PARTITION].log_end_offset


class CountingFiles(SimulatedFiles):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open(self, path: str, *, create: bool = False) -> Any:
        self.opened.append(path)
        return super().open(path, create=create)


def run(body: Callable[[Broker], None]) -> None:
    async def in_loop() -> None:
        body(Broker())

    asyncio.run(in_loop())


def test_a_start_after_a_clean_stop_opens_no_file_of_any_log() -> None:
    def body(broker: Broker) -> None:
        broker.open()
        broker.append()
        broker.logs.close()
        broker.files.lose_power()
        broker.open()
        assert [path for path in broker.files.opened if str(TOPIC_PARTITION) in path] == []
        assert broker.end_offset() == 1
        broker.logs.close()

    run(body)


def test_there_is_neither_state_nor_marker_while_the_broker_runs() -> None:
    def body(broker: Broker) -> None:
        broker.open().close()
        assert {CLEAN_STATE, CLEAN_SHUTDOWN_MARKER} <= set(broker.files.names("/data"))
        broker.open()
        broker.files.lose_power()
        assert not {CLEAN_STATE, CLEAN_SHUTDOWN_MARKER} & set(broker.files.names("/data"))

    run(body)


def test_a_state_without_its_marker_is_neither_believed_nor_kept() -> None:
    def body(broker: Broker) -> None:
        broker.open()
        broker.append()
        broker.logs.close()
        broker.files.remove(f"/data/{CLEAN_SHUTDOWN_MARKER}")
        broker.open()
        assert [path for path in broker.files.opened if str(TOPIC_PARTITION) in path]
        assert not broker.files.exists(f"/data/{CLEAN_STATE}")
        broker.logs.close()

    run(body)


def test_a_stop_without_space_for_the_state_is_still_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(broker: Broker) -> None:
        broker.open()
        broker.append()
        replace = broker.files.replace

        def refuse(path: str, data: bytes) -> None:
            if path.endswith(CLEAN_STATE):
                raise OSError("no space")
            replace(path, data)

        monkeypatch.setattr(broker.files, "replace", refuse)
        broker.logs.close()
        assert broker.open().was_clean
        assert broker.end_offset() == 1
        broker.logs.close()

    run(body)
