"""Cutting logs while a broker runs: what happens meanwhile, and crashes half-way."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain, repeat

import pytest

from flowstone.errors import ApiError, StorageFault
from flowstone.log.lifecycle.durable_extents import LOG_EXTENTS
from flowstone.log.partition.partition_log import PartitionLog
from tests.support.compacted_log import CutFiles, PowerCut
from tests.support.managed_logs import Broker, run


@pytest.fixture
def broker() -> Broker:
    return Broker()


async def filled(broker: Broker, count: int = 50) -> PartitionLog:
    """A log of several segments, durable and checkpointed."""
    broker.open()
    log = broker.log()
    for _ in range(count):
        broker.append(log)
    await broker.flush(log)
    await broker.logs.directories[0].housekeeping.checkpoint()
    return log


def after_a_kill(broker: Broker, *, power_is_lost: bool = False) -> PartitionLog:
    broker.logs.abort()
    if power_is_lost:
        broker.files.lose_power()
    broker.open()
    assert not broker.logs.offline, broker.logs.offline
    return broker.log()


@pytest.mark.parametrize("offset", [0, 1, 20, 49, 50, 60])
def test_everything_from_the_offset_on_is_dropped_and_nothing_else(broker: Broker, offset: int) -> None:
    async def body() -> None:
        log = await filled(broker)
        await broker.logs.truncate_to(log, offset)
        assert log.log_end_offset == min(offset, 50)
        assert broker.append(log) == min(offset, 50)
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("power_is_lost", [False, True])
def test_a_log_that_started_over_does_so_after_a_crash(broker: Broker, power_is_lost: bool) -> None:
    async def body() -> None:
        log = await filled(broker)
        await broker.logs.reset_to(log, 1000)
        await broker.flush(log)
        again = after_a_kill(broker, power_is_lost=power_is_lost)
        assert (again.log_start_offset, again.log_end_offset) == (1000, 1000)
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("power_is_lost", [False, True])
def test_records_of_a_log_that_started_over_at_an_earlier_offset_are_there_after_a_crash(
    broker: Broker, power_is_lost: bool
) -> None:
    async def body() -> None:
        log = await filled(broker)
        await broker.logs.delete_records_before(log, 40)
        await broker.logs.reset_to(log, 10)
        for _ in range(5):
            broker.append(log)
        await broker.flush(log)
        again = after_a_kill(broker, power_is_lost=power_is_lost)
        assert (again.log_start_offset, again.log_end_offset) == (10, 15)
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_cut_log_is_not_taken_for_a_damaged_one_after_a_power_loss(broker: Broker, flushed: bool) -> None:
    async def body() -> None:
        log = await filled(broker)
        broker.files.open(f"/data/{LOG_EXTENTS}").sync()  # as the kernel does by itself, sooner or later
        await broker.logs.truncate_to(log, 20)
        if flushed:
            await broker.flush(log)
        assert after_a_kill(broker, power_is_lost=True).log_end_offset in ((20,) if flushed else (20, 50))
        broker.logs.close()

    run(body)


def test_the_caller_is_asked_again_before_records_are_dropped(broker: Broker) -> None:
    async def body() -> None:
        log = await filled(broker)
        answers = chain([True], repeat(False))
        await broker.logs.truncate_to(log, 20, lambda: next(answers))
        await broker.logs.reset_to(log, 1000, lambda: False)
        assert log.log_end_offset == 50
        assert broker.append(log) == 50
        await broker.flush(log)
        assert log.recovery_point == 51
        broker.logs.close()

    run(body)


def test_a_log_that_grows_meanwhile_is_planned_again(broker: Broker) -> None:
    async def body() -> None:
        log = await filled(broker)
        asked = 0

        def is_due() -> bool:
            nonlocal asked
            asked += 1
            if asked == 2:
                broker.append(log)
            return True

        await broker.logs.truncate_to(log, 20, is_due)
        assert log.log_end_offset == 20
        broker.logs.close()

    run(body)


def test_a_log_that_is_rolled_meanwhile_is_planned_again(broker: Broker) -> None:
    async def body() -> None:
        log = await filled(broker)
        truncating = asyncio.ensure_future(broker.logs.truncate_to(log, 49))
        await asyncio.sleep(0)
        log.roll()
        await truncating
        assert log.log_end_offset == 49
        assert log.segments.active.next_offset == 49
        broker.logs.close()

    run(body)


@pytest.mark.parametrize(("operation", "error"), [("write", errno.ENOSPC), ("sync", errno.EIO)])
def test_nothing_is_changed_where_the_checkpoint_cannot_be_written(broker: Broker, operation: str, error: int) -> None:
    async def body() -> None:
        log = await filled(broker)
        broker.files.fail_next(operation, error, times=10 if error == errno.ENOSPC else 1)
        with pytest.raises(ApiError):
            await broker.logs.truncate_to(log, 20)
        broker.files.fail_nothing()
        assert log.log_end_offset == 50
        while log.recovery_point < 50:
            broker.flushed.clear()
            await asyncio.wait_for(broker.flushed.wait(), 10)
        broker.logs.close()

    run(body)


def test_a_partly_truncated_log_is_offline_until_a_start_has_recovered_it(broker: Broker) -> None:
    async def body() -> None:
        log = await filled(broker)
        broker.files.fail_next("remove", errno.EIO, after=4)
        with pytest.raises(StorageFault):
            await broker.logs.truncate_to(log, 20)
        broker.logs.close()
        assert not broker.files.exists("/data/.kafka_cleanshutdown")
        broker.open()
        assert 20 <= broker.log().log_end_offset < 50
        broker.logs.close()

    run(body)


def test_a_log_that_cannot_be_read_cannot_be_truncated(broker: Broker) -> None:
    async def body() -> None:
        log = await filled(broker)
        broker.files.fail_next("read", errno.EIO, times=10)
        with pytest.raises(StorageFault):
            await broker.logs.truncate_to(log, 20)
        broker.logs.abort()

    run(body)


def test_a_log_whose_producers_cannot_be_forgotten_is_not_cut(broker: Broker) -> None:
    """Snapshots of producers beyond the cut go before any record does: the first file to be removed is one."""

    async def body() -> None:
        log = await filled(broker)
        broker.files.fail_next("remove", errno.EIO)
        with pytest.raises(StorageFault, match="cannot be truncated"):
            await broker.logs.truncate_to(log, 20)
        assert log.log_end_offset == 50
        assert broker.append(log) == 50
        broker.logs.abort()

    run(body)


async def truncate(broker: Broker) -> None:
    await broker.logs.truncate_to(broker.log(), 20)


async def start_over(broker: Broker) -> None:
    await broker.logs.reset_to(broker.log(), 1000)


async def crash(cut: Callable[[Broker], Awaitable[None]], cut_in: int, power_is_lost: bool) -> tuple[int, int, bool]:
    """Where the log begins and ends after a crash at that call of the disk, and whether the cut had come to its end."""
    broker = Broker()
    broker.files = files = CutFiles()
    await filled(broker)
    files.cut_in = cut_in
    is_over = False
    with suppress(PowerCut):
        await cut(broker)
        is_over = True
    files.cut_in = None
    if is_over:
        await broker.flush(broker.log())
    else:
        broker.logs.directories[0].flusher.forget(broker.log())
    log = after_a_kill(broker, power_is_lost=power_is_lost)
    broker.append(log)
    broker.logs.abort()
    return log.log_start_offset, log.log_end_offset - 1, is_over


@pytest.mark.parametrize("power_is_lost", [False, True], ids=["killed", "without power"])
def test_a_crash_at_any_call_of_a_truncation_leaves_the_log_at_least_up_to_there(power_is_lost: bool) -> None:
    async def body() -> None:
        cut_in, is_over = 0, False
        while not is_over:
            start, end, is_over = await crash(truncate, cut_in, power_is_lost)
            assert start == 0
            assert 20 <= end <= 50
            cut_in += 1
        assert cut_in > 10  # it takes that many calls at least, and each of them was tried

    run(body)


@pytest.mark.parametrize("power_is_lost", [False, True], ids=["killed", "without power"])
def test_a_crash_at_any_call_of_starting_over_leaves_the_old_logs_beginning_or_the_new_log(power_is_lost: bool) -> None:
    async def body() -> None:
        cut_in, is_over = 0, False
        while not is_over:
            start, end, is_over = await crash(start_over, cut_in, power_is_lost)
            assert (start, end) == (1000, 1000) or (start == 0 and end <= 50)
            cut_in += 1
        assert cut_in > 10

    run(body)
