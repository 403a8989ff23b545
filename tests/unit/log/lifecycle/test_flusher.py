from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowstone.errors import StorageFault
from flowstone.kernel import KERNEL
from flowstone.log.lifecycle import flusher as flusher_module
from flowstone.log.lifecycle.flusher import Flusher
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.ports.simulated_files import SimulatedFile, SimulatedFiles
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition

ENTERED_S = 5  # less than a gate waits to be opened


class Told:
    """What the flusher reported, and a way to wait for it."""

    def __init__(self) -> None:
        self.flushed: list[PartitionLog] = []
        self.faults: list[StorageFault] = []
        self._changed = asyncio.Event()

    def on_flushed(self, log: PartitionLog) -> None:
        self.flushed.append(log)
        self._changed.set()

    def on_fault(self, log: PartitionLog, fault: StorageFault) -> None:
        self.faults.append(fault)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 10)


class Gate:
    """Holds every sync of a file back until it is opened, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()
        sync = SimulatedFile.sync

        def gated(file: SimulatedFile) -> None:
            self.syncs += 1
            self.entered.release()
            assert self._open.wait(10)
            sync(file)

        monkeypatch.setattr(SimulatedFile, "sync", gated)

    def open(self) -> None:
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()


def start(world: Any, told: Told, files: SimulatedFiles | None = None, threads: int = 2) -> Flusher:
    return Flusher(
        files or world.files, "/data", world.clock, threads, on_flushed=told.on_flushed, on_fault=told.on_fault
    )


def run(body: Callable[[], Any]) -> None:
    asyncio.run(body())


def test_a_requested_flush_makes_the_log_durable(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.append(3)
        flusher.request(world.log)
        await told.until(lambda: bool(told.flushed))
        assert world.log.recovery_point == 3
        flusher.stop()
        world.files.lose_power()
        assert world.reopen().log_end_offset == 3

    run(body)


def test_what_arrives_during_a_flush_shares_the_next(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        told, gate = Told(), Gate(monkeypatch)
        flusher = start(world, told)
        world.append()
        flusher.request(world.log)
        await asyncio.sleep(0)
        gate.entered.acquire(timeout=10)
        for _ in range(5):
            world.append()
            flusher.request(world.log)
        gate.open()
        await told.until(lambda: world.log.recovery_point == 6)
        assert len(told.flushed) == 2
        flusher.stop()

    run(body)


def test_what_is_appended_in_one_turn_of_the_loop_shares_one_flush(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        for _ in range(5):
            world.append()
            flusher.request(world.log)
        await told.until(lambda: world.log.recovery_point == 5)
        assert len(told.flushed) == 1
        flusher.stop()

    run(body)


def test_a_log_with_nothing_to_flush_is_left_alone(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.append()
        world.flush()
        flusher.request(world.log)
        flusher.stop()
        await asyncio.get_running_loop().run_in_executor(None, int)
        assert told.flushed == []

    run(body)


def test_a_failed_flush_is_reported_once_and_nothing_is_flushed_after_it(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.append()
        world.files.fail_next("sync", errno.EIO)
        flusher.request(world.log)
        await told.until(lambda: bool(told.faults))
        world.append()
        flusher.request(world.log)
        flusher.stop()
        await asyncio.sleep(0)
        assert (len(told.faults), told.flushed) == (1, [])
        assert flusher.fault is told.faults[0]
        assert "orders-3" in str(flusher.fault)
        assert world.log.recovery_point == 0

    run(body)


def test_a_flush_that_finds_no_descriptor_is_tried_again(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.append()
        world.files.fail_next("sync_directory", errno.EMFILE, times=2)
        flusher.request(world.log)
        await told.until(lambda: bool(told.flushed))
        assert (world.log.recovery_point, told.faults) == (1, [])
        flusher.stop()

    run(body)


def test_a_flush_under_way_when_another_fails_is_not_reported(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told, threads=1)
        other = another_log(world, "other")
        world.append()
        other.append(world.batch(), leader_epoch=0)
        world.files.fail_next("sync", errno.EIO)
        flusher.request(world.log)
        flusher.request(other)
        await told.until(lambda: bool(told.faults))
        flusher.stop()
        await asyncio.sleep(0)
        assert told.flushed == []
        assert other.recovery_point == 0

    run(body)


def test_stopping_waits_for_the_flush_under_way_and_counts_it(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.append(3)
        flusher.request(world.log)
        flusher.stop()
        assert world.log.recovery_point == 3

    run(body)


def test_a_fault_found_while_stopping_is_reported(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.append(3)
        world.files.fail_next("sync", errno.EIO)
        flusher.request(world.log)
        flusher.stop()
        assert len(told.faults) == 1
        assert world.log.recovery_point == 0

    run(body)


def another_log(world: Any, name: str) -> PartitionLog:
    directory = PartitionDirectory(world.files, f"/data/{name}-0", exists=False)
    handles = FileHandles(world.files, 200)
    return PartitionLog(TopicPartition(name, 0), bytes(16), world.config, world.clock, handles, directory)


def test_many_dirty_logs_share_one_sync_of_the_file_system(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        monkeypatch.setattr(flusher_module, "SYNCFS_LOGS", 3)
        monkeypatch.setattr(SimulatedFiles, "is_own_filesystem", lambda files, path: True)
        told, gate = Told(), Gate(monkeypatch)
        flusher = start(world, told)
        logs = [another_log(world, f"topic{number}") for number in range(20)]
        for log in logs:
            log.append(world.batch(), leader_epoch=0)
            flusher.request(log)
        gate.open()
        await told.until(lambda: len(told.flushed) == 20)
        assert gate.syncs == 20  # their epochs, which are replaced; the rest is syncfs'
        assert all(log.recovery_point == 1 for log in logs)
        flusher.stop()

    run(body)


@pytest.mark.parametrize(("flush_messages", "flushes"), [(5, 2), (4, 3), (12, 1), (13, 0), (20, 0)])
def test_records_are_counted_until_a_flush_is_due(world: Any, flush_messages: int, flushes: int) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.log.configure(world_config(world, flush_messages=flush_messages))
        for _ in range(6):
            before = len(told.flushed)
            world.append(2)
            due = world.log.log_end_offset
            flusher.appended(world.log, 2)
            if due % (flush_messages + flush_messages % 2) == 0:
                await told.until(lambda before=before: len(told.flushed) > before)
        flusher.stop()
        assert len(told.flushed) == flushes
        assert bool(world.log.recovery_point) is bool(flushes)

    run(body)


def test_a_record_waits_no_longer_than_flush_ms(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.log.configure(world_config(world, flush_messages=100, flush_ms=500))
        world.append()
        flusher.appended(world.log, 1)
        world.clock.advance(0.4)
        assert world.log.recovery_point == 0
        world.clock.advance(0.1)
        await told.until(lambda: bool(told.flushed))
        flusher.stop()

    run(body)


def test_a_forgotten_log_has_no_flush_left(world: Any) -> None:
    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.log.configure(world_config(world, flush_messages=100, flush_ms=500))
        world.append()
        flusher.appended(world.log, 1)
        flusher.forget(world.log)
        world.clock.advance(10)
        flusher.stop()
        assert world.log.recovery_point == 0

    run(body)


def test_a_log_is_forgotten_once_the_flush_under_way_has_ended(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        gate = Gate(monkeypatch)
        flusher = start(world, Told())
        world.append()
        flusher.request(world.log)
        await asyncio.to_thread(gate.entered.acquire)
        opening = threading.Timer(0.2, gate.open)
        opening.start()
        flusher.forget(world.log)
        assert gate.is_open
        opening.join()
        flusher.stop()

    run(body)


def test_a_forgotten_log_that_is_asked_for_again_is_not_flushed(world: Any) -> None:
    """A truncation that was waiting for the disk asks for a flush when the log's directory is gone."""

    async def body() -> None:
        told = Told()
        flusher = start(world, told)
        world.append()
        flusher.forget(world.log)
        flusher.request(world.log)
        await asyncio.sleep(0)
        flusher.stop()
        assert (told.flushed, world.log.recovery_point) == ([], 0)

    run(body)


def test_more_threads_begin_with_the_logs_that_wait(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        told, gate = Told(), Gate(monkeypatch)
        flusher = start(world, told, threads=1)
        await request_logs(world, flusher, 1)
        assert await asyncio.to_thread(gate.entered.acquire, timeout=ENTERED_S)
        await request_logs(world, flusher, 3, first=1)
        assert gate.syncs == 1
        flusher.resize(3)
        for _ in range(2):
            assert await asyncio.to_thread(gate.entered.acquire, timeout=ENTERED_S)
        gate.open()
        await told.until(lambda: len(told.flushed) == 4)
        flusher.stop()

    run(body)


def test_flushes_that_run_and_wait_are_finished_when_threads_become_fewer(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        told, gate = Told(), Gate(monkeypatch)
        flusher = start(world, told, threads=3)
        await request_logs(world, flusher, 3)
        for _ in range(3):
            assert await asyncio.to_thread(gate.entered.acquire, timeout=ENTERED_S)
        flusher.resize(1)
        await request_logs(world, flusher, 6, first=3)
        assert gate.syncs == 3
        gate.open()
        await told.until(lambda: len(told.flushed) == 9)
        flusher.stop()
        flusher.resize(2)  # nothing is there to be changed any more

    run(body)


@pytest.mark.skipif(KERNEL != "native", reason="no native kernel")
def test_the_number_of_native_threads_changes_too(world: Any, tmp_path: Path) -> None:
    async def body() -> None:
        told = Told()
        flusher = Flusher(
            SystemFiles(), str(tmp_path), world.clock, 1, on_flushed=told.on_flushed, on_fault=told.on_fault
        )
        before = len(os.listdir("/proc/self/task"))
        flusher.resize(5)
        assert len(os.listdir("/proc/self/task")) == before + 4
        flusher.stop()

    run(body)


async def request_logs(world: Any, flusher: Flusher, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        log = another_log(world, f"topic{number}")
        log.append(world.batch(), leader_epoch=0)
        flusher.request(log)
    await asyncio.sleep(0)


def world_config(world: Any, **changes: int) -> Any:
    return dataclasses.replace(world.config, **changes)
