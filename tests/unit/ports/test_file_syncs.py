from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from flowstone.kernel import KERNEL
from flowstone.kernel.sync_threads import OUTCOMES_PER_TAKE_MAX
from flowstone.ports.file_syncs import FileSyncs
from flowstone.ports.loops import new_event_loop
from flowstone.ports.replies import Reply
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


def lend(syncs: FileSyncs[str], token: str, files: list[SystemFile], reply: Reply) -> None:
    """To a job that is not done yet: one may be before it can be lent anything."""
    for _ in range(100):
        files[0].write(0, [os.urandom(100)])
        if syncs.lend(syncs.submit(token, files), reply):
            return
    raise AssertionError("every job was done too soon")


def test_a_reply_is_sent_once_the_files_are_synced(tmp_path: Path) -> None:
    async def body() -> None:
        syncs, outcomes = start()
        ours, theirs = socket.socketpair()
        reply = Reply(ours.fileno(), b"durable")
        lend(syncs, "with a reply", [new_file(tmp_path, "file")], reply)
        assert theirs.recv(100) == b"durable"
        syncs.look()  # whoever has it finds the outcome
        assert outcomes.seen[-1] == ("with a reply", None)
        assert reply.settle() == b""
        syncs.stop()
        ours.close()
        theirs.close()

    run(body)


def test_a_job_that_is_done_takes_no_reply_and_no_job_takes_two(tmp_path: Path) -> None:
    async def body() -> None:
        syncs, outcomes = start()
        ours, theirs = socket.socketpair()
        file = new_file(tmp_path, "file")
        ticket = syncs.submit("done", [file])
        await outcomes.until(1)
        assert not syncs.lend(ticket, Reply(ours.fileno(), b"late"))
        first = Reply(ours.fileno(), b"first")
        lend(syncs, "two", [file], first)
        assert not syncs.lend(syncs._tickets, Reply(ours.fileno(), b"second"))
        syncs.stop()
        ours.close()
        assert theirs.recv(100) == b"first"
        assert theirs.recv(100) == b""
        theirs.close()

    run(body)


def test_a_sync_that_fails_sends_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        read_end, write_end = os.pipe()
        syncs, outcomes = start()
        ours, theirs = socket.socketpair()
        reply = Reply(ours.fileno(), b"durable")
        lend(syncs, "fails", [new_file(tmp_path, "file"), SystemFile("a pipe", write_end)], reply)
        while syncs._under_way:
            await outcomes.until(len(outcomes.seen) + 1)
        assert all(error is not None for _, error in outcomes.seen)
        assert reply.settle() is None
        syncs.stop()
        ours.close()
        assert theirs.recv(100) == b""
        theirs.close()
        os.close(read_end)

    run(body)


def test_what_the_socket_does_not_take_is_left_to_the_loop(tmp_path: Path) -> None:
    async def body() -> None:
        syncs, outcomes = start()
        file = new_file(tmp_path, "file")

        async def send(data: bytes) -> bytes | None:
            """What is left to send."""
            reply = Reply(ours.fileno(), data)
            lend(syncs, "job", [file], reply)
            while syncs._under_way:
                await outcomes.until(len(outcomes.seen) + 1)
            return reply.settle()

        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        data = bytes(range(256)) * 20_000
        rest = await send(data)
        assert rest is not None
        assert 0 < len(rest) < len(data)
        assert await send(b"no room") is None
        got = b""
        while len(got) < len(data) - len(rest):
            got += theirs.recv(1 << 20)
        assert got + rest == data
        theirs.close()
        assert await send(b"nobody is there") is None
        assert all(error is None for _, error in outcomes.seen)
        syncs.stop()
        ours.close()

    run(body)


def test_a_reply_that_is_taken_back_is_sent_before_or_never(tmp_path: Path) -> None:
    async def body() -> None:
        syncs, outcomes = start()
        file = new_file(tmp_path, "file")
        ours, theirs = socket.socketpair()
        expected = b""
        for number in range(300):
            reply = Reply(ours.fileno(), b"%5d" % number)
            lend(syncs, str(number), [file], reply)
            for _ in range(number * 20):  # from at once to well after it
                pass
            if reply.settle() is not None:
                expected += reply.data
            while syncs._under_way:
                await outcomes.until(len(outcomes.seen) + 1)
        syncs.stop()
        ours.close()
        got = b""
        while chunk := theirs.recv(1 << 16):
            got += chunk
        assert got == expected
        assert len(got) < 5 * 300
        theirs.close()

    run(body)
