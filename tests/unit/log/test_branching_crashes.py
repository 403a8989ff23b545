"""The power goes at every call of a branch in turn: what is found then is no branch or all of it, and the source."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from flowstone.wire.record_batch import Record
from tests.support.branched_logs import BRANCH, BRANCH_ID, SOURCE_ID, Directory, append, fill, flush, stored
from tests.support.compacted_log import CutFiles, PowerCut

BATCHES = 8


async def attempt(cut_in: int | None, end_offset: int | None) -> tuple[Directory, bool, list[Record]]:
    """A branch under way when the power goes; whether it was installed, and what the source had."""
    files = CutFiles()
    files.make_directory("/data")
    directory = Directory(files)
    directory.open()
    fill(directory.source, BATCHES)
    await directory.logs.directory_of(directory.source).housekeeping.checkpoint()
    before = stored(directory.source)
    files.cut_in = cut_in
    installed = False
    with suppress(PowerCut):
        await directory.branch(end_offset)
        installed = True
    files.cut_in = 0
    return directory, installed, before


def reopen(directory: Directory) -> None:
    directory.logs.abort()
    directory.files.cut_in = None
    directory.files.lose_power()
    directory.open()


async def check(cut_in: int, end_offset: int | None) -> bool:
    """Whether the branch was installed before the power went."""
    directory, installed, before = await attempt(cut_in, end_offset)
    try:
        reopen(directory)
        # The metadata has the topic only if the branch was installed; it tells of no deletion in either case.
        directory.logs.delete_strays({SOURCE_ID, BRANCH_ID} if installed else {SOURCE_ID}, deleted_topic_ids=set())
        assert not [name for name in directory.files.names("/data") if name.endswith("-stray")]
        assert stored(directory.source) == before
        if installed:
            wanted = before if end_offset is None else before[:end_offset]
            assert stored(directory.branch_log) == wanted
            append(directory.branch_log, [b"branch"])
        else:
            assert BRANCH not in directory.logs.logs
        append(directory.source, [b"source"])
        flush(directory.source)
        assert stored(directory.source)[:-1] == before
        return installed
    finally:
        directory.logs.abort()


@pytest.mark.parametrize("end_offset", [None, 13])
def test_a_power_cut_at_any_call_leaves_no_branch_or_all_of_it(end_offset: int | None) -> None:
    async def run() -> None:
        cut_in = 0
        while not await check(cut_in, end_offset):
            cut_in += 1
        assert cut_in > 20  # the branch takes that many calls at least, and each of them was tried

    asyncio.run(run())


@pytest.mark.parametrize("is_noted_by_the_start", [False, True])
def test_a_published_branch_that_the_metadata_has_lost_is_kept(is_noted_by_the_start: bool) -> None:
    async def run() -> None:
        directory, _, records = await attempt(None, None)
        directory.files.cut_in = None
        if not is_noted_by_the_start:
            directory.logs.note_published([BRANCH])
            await directory.logs.directory_of(directory.branch_log).housekeeping.in_thread(lambda: None)
        for _ in range(2):
            directory.logs.abort()
            directory.open()
            directory.logs.delete_strays({SOURCE_ID, BRANCH_ID}, deleted_topic_ids=set())
        assert stored(directory.branch_log) == records
        directory.logs.abort()
        directory.open()
        directory.logs.delete_strays({SOURCE_ID}, deleted_topic_ids=set())
        directory.logs.abort()
        assert len([name for name in directory.files.names("/data") if name.endswith("-stray")]) == 1

    asyncio.run(run())
