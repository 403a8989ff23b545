from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from flowstone.kernel import KERNEL
from flowstone.ports.file_syncs import OUTCOMES_PER_TAKE_MAX, FileSyncs
from flowstone.ports.loops import new_event_loop
from flowstone.ports.system_files import SystemFile, SystemFiles

pytestmark = pytest.mark.skipif(KERNEL != "native", reason="no native kernel")

THREADS = 2


class Outcomes:
    def __init__(self) -> None:
        self.seen: list[tuple[str, OSError | None]] = []
        self._changed = asyncio.Event()

    def note(self, token: str, error: OSError | None) -> None:
        self.seen.append((token, error))
        self._changed.set()

    async def until(self, count: int) -> None:
        while len(self.seen) < count:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 10)


def run(body: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(body())  # type: ignore[arg-type]


def start() -> tuple[FileSyncs[str], Outcomes]:
    outcomes = Outcomes()
    return FileSyncs(asyncio.get_running_loop(), THREADS, outcomes.note), outcomes


def new_file(folder: Path, name: str) -> SystemFile:
    file = SystemFiles().open(str(folder / name), create=True)
    file.write(0, [b"bytes"])
    return file


def test_each_job_is_heard_of_once(tmp_path: Path) -> None:
    async def body() -> None:
        syncs, outcomes = start()
        first, second = new_file(tmp_path, "first"), new_file(tmp_path, "second")
        syncs.submit("one file", [first])
        syncs.submit("two files", [first, second])
        await outcomes.until(2)
        assert sorted(outcomes.seen, key=str) == [("one file", None), ("two files", None)]
        assert syncs.stop() == []

    run(body)


def test_more_jobs_than_one_look_takes_are_all_heard_of(tmp_path: Path) -> None:
    async def body() -> None:
        syncs, outcomes = start()
        file = new_file(tmp_path, "file")
        count = 2 * OUTCOMES_PER_TAKE_MAX + 1
        for number in range(count):
            syncs.submit(str(number), [file])
        await outcomes.until(count)
        assert {token for token, error in outcomes.seen if error is None} == {str(number) for number in range(count)}
        syncs.stop()

    run(body)


@pytest.mark.parametrize("position", [0, 1])
def test_a_file_that_cannot_be_synced_fails_its_job_and_no_other(tmp_path: Path, position: int) -> None:
    async def body() -> None:
        read_end, write_end = os.pipe()  # which no file system can sync
        pipe, file = SystemFile("a pipe", write_end), new_file(tmp_path, "file")
        syncs, outcomes = start()
        syncs.submit("with the pipe", [pipe, file] if position == 0 else [file, pipe])
        syncs.submit("without", [file])
        await outcomes.until(2)
        errors = dict(outcomes.seen)
        assert errors["without"] is None
        error = errors["with the pipe"]
        assert error is not None
        assert error.errno == errno.EINVAL
        assert "a pipe" in str(error)
        syncs.stop()
        os.close(read_end)

    run(body)


def test_stopping_waits_and_returns_what_was_not_heard_of(tmp_path: Path) -> None:
    async def body() -> None:
        syncs, outcomes = start()
        syncs.submit("under way", [new_file(tmp_path, "file")])
        assert syncs.stop() == [("under way", None)]
        assert outcomes.seen == []

    run(body)


def test_stopping_leaves_no_thread_and_no_descriptor() -> None:
    def counts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    async def body() -> None:
        before = counts()
        syncs, _outcomes = start()
        assert counts()[0] == before[0] + THREADS
        syncs.stop()
        assert counts() == before

    run(body)


async def until_threads(count: int) -> None:
    async with asyncio.timeout(10):
        while len(os.listdir("/proc/self/task")) != count:
            await asyncio.sleep(0.001)


def test_the_number_of_threads_changes() -> None:
    async def body() -> None:
        others = len(os.listdir("/proc/self/task"))
        syncs, _outcomes = start()
        for count in (4, 8, 4, 2, 1, 2, 2):
            syncs.resize(count)
            await until_threads(others + count)
        syncs.stop()
        await until_threads(others)

    run(body)


def test_each_job_is_heard_of_once_however_often_the_number_of_threads_changes(tmp_path: Path) -> None:
    async def body() -> None:
        random = Random(7)
        others = len(os.listdir("/proc/self/task"))
        syncs, outcomes = start()
        files = [new_file(tmp_path, str(number)) for number in range(4)]
        for number in range(1000):
            syncs.submit(str(number), random.sample(files, 2))
            if random.random() < 0.2:
                syncs.resize(random.randint(1, 8))
            if random.random() < 0.05:
                await asyncio.sleep(0.001)
        await outcomes.until(1000)
        assert sorted(outcomes.seen) == sorted((str(number), None) for number in range(1000))
        syncs.submit("last", files)
        syncs.resize(1)
        assert syncs.stop() == [("last", None)]
        assert len(os.listdir("/proc/self/task")) == others

    run(body)
