"""The power goes at every call of retention and of a topic's deletion in turn: what is left is the log as it was, or
without what was to go, and the next life can finish it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, StorageFault
from flowstone.wire.record_batch import Record
from tests.support.branched_logs import CONFIG, SOURCE, Directory, append, fill, flush, stored
from tests.support.compacted_log import CutFiles, PowerCut

BATCHES = 12
EXPIRING = dataclasses.replace(CONFIG, retention_bytes=1500)
EXPIRED = dataclasses.replace(CONFIG, retention_ms=1000)  # all that there is, by its timestamps

Operation = Callable[[Directory], Awaitable[None]]


async def begin() -> tuple[Directory, list[Record]]:
    files = CutFiles()
    files.make_directory("/data")
    directory = Directory(files)
    directory.open()
    fill(directory.source, BATCHES)
    await directory.logs.directory_of(directory.source).housekeeping.checkpoint()
    return directory, stored(directory.source)


async def retain(directory: Directory, config: TopicConfig) -> None:
    log = directory.source
    log.configure(config)
    await directory.logs.directory_of(log).housekeeping.apply_retention()
    flush(log)
    await directory.settle()
    directory.clock.advance(1)  # the files go after file.delete.delay.ms
    await directory.settle()


async def expire_some(directory: Directory) -> None:
    await retain(directory, EXPIRING)


async def expire_all(directory: Directory) -> None:
    await retain(directory, EXPIRED)


async def cut_short(directory: Directory, operation: Operation, cut_in: int) -> bool:
    """Whether the power went before the operation was over; it is back when this returns, in another life."""
    directory.files.cut_in = cut_in
    # What fails because the machine is gone is told in many ways.
    with suppress(PowerCut, StorageFault, ApiError, OSError):
        await operation(directory)
    was_cut = directory.files.cut_in == 0
    directory.files.cut_in = 0
    directory.logs.abort()
    directory.files.cut_in = None
    directory.files.lose_power()
    directory.open()
    return was_cut


@pytest.mark.parametrize("operation", [expire_some, expire_all], ids=lambda operation: operation.__name__)
def test_a_power_cut_at_any_call_of_retention_leaves_a_suffix_and_every_offset(operation: Operation) -> None:
    async def check(cut_in: int) -> bool:
        directory, before = await begin()
        was_cut = await cut_short(directory, operation, cut_in)
        try:
            log = directory.source
            assert log.log_end_offset == len(before)
            assert stored(log) == before[log.log_start_offset :]
            await operation(directory)
            assert 0 < log.log_start_offset <= len(before)
            assert stored(log) == before[log.log_start_offset :]
            append(log, [b"more"])
            assert stored(log)[-1].offset == len(before)
        finally:
            directory.logs.abort()
        return was_cut

    asyncio.run(all_calls(check))


def test_a_power_cut_at_any_call_of_a_deletion_leaves_the_log_or_nothing() -> None:
    async def delete(directory: Directory) -> None:
        home = directory.logs.directory_of(directory.source)
        directory.logs.delete(SOURCE)
        await directory.logs.wait_forgotten()
        directory.clock.advance(1)
        await home.housekeeping.in_thread(lambda: None)

    async def check(cut_in: int) -> bool:
        directory, before = await begin()
        was_cut = await cut_short(directory, delete, cut_in)
        try:
            if SOURCE in directory.logs.logs:
                assert stored(directory.source) == before
            # The metadata has lost the topic before its directory goes: what is left of it is a stray.
            directory.logs.delete_strays(set())
            assert SOURCE not in directory.logs.logs
            await directory.logs.wait_forgotten()
            again = directory.logs.get_or_create(SOURCE, b"9" * 16, CONFIG)
            append(again, [b"anew"])
            assert [record.offset for record in stored(again)] == [0]
        finally:
            directory.logs.abort()
        return was_cut

    asyncio.run(all_calls(check))


async def all_calls(check: Callable[[int], Awaitable[bool]]) -> None:
    cut_in = 0
    while await check(cut_in):
        cut_in += 1
    assert cut_in > 10  # it takes that many calls at least, and each of them was tried
