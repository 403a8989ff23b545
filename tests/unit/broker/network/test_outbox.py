"""What a connection sends: bytes in runs, slices from the page cache, and never more at once than its share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.broker.network import outbox
from flowstone.broker.network.outbox import SMALL_SLICE_BYTES, SMALL_SLICES_BYTES_MAX, Outbox, UnreadableSlice
from flowstone.broker.network.unsent_bytes import Unsent, UnsentTotal
from flowstone.log.segments.cached_reads import LogSlice

Sent = tuple[str, bytes, bool]


class CachedFile:
    """A file whose bytes are in the page cache, or come there when they are read."""

    path = "/data/t-0/0.log"

    def __init__(self, data: bytes, *, is_cached: bool = True, error: OSError | None = None) -> None:
        self.data, self.cached, self.error = data, is_cached, error

    def is_cached(self, position: int, count: int) -> bool:
        return self.cached

    def read_cached(self, position: int, count: int) -> bytes | None:
        if self.error is not None:
            raise self.error
        return self.data[position : position + count] if self.cached else None

    def slice(self, position: int, count: int) -> Any:
        file: Any = self
        return LogSlice(file, position, count)


class Channel:
    """A channel that takes so many bytes with each call; None: all. It blocks after `calls_left` calls."""

    def __init__(self, at_once: int | None = None) -> None:
        self.sent: list[Sent] = []
        self.at_once, self.calls_left = at_once, 1_000
        self.error: OSError | None = None
        self.writable: Callable[[], None] | None = None

    def _taken(self, data: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        if not self.calls_left:
            raise BlockingIOError
        self.calls_left -= 1
        return data if self.at_once is None else data[: self.at_once]

    def send(self, run: list[Any], *, more: bool) -> int:
        taken = self._taken(b"".join(map(bytes, run)))
        self.sent.append(("send", taken, more))
        return len(taken)

    def send_file(self, file: CachedFile, position: int, count: int) -> int:
        taken = self._taken(file.data[position : position + count])
        self.sent.append(("file", taken, False))
        return len(taken)

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self.writable = callback


class Sending:
    """An outbox, its channel, and what it has reported."""

    def __init__(self, at_once: int | None = None) -> None:
        self.channel, self.total = Channel(at_once), UnsentTotal()
        self.unsent = Unsent(self.total)
        self.reads: list[tuple[Callable[[], object], asyncio.Future[object]]] = []
        self.errors: list[Exception] = []
        self.sendable_count = 0
        channel: Any = self.channel
        self.outbox = Outbox(channel, self.unsent, self._read, self._sendable, self.errors.append)

    def _read(self, work: Callable[[], object]) -> asyncio.Future[object]:
        self.reads.append((work, asyncio.get_running_loop().create_future()))
        return self.reads[-1][1]

    def _sendable(self) -> None:
        self.sendable_count += 1

    def put(self, *chunks: Any) -> None:
        self.outbox.put(list(chunks), self.unsent.add(chunks))
        self.outbox.flush()

    @property
    def stream(self) -> bytes:
        return b"".join(data for _, data, _ in self.channel.sent)

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.outbox.queued_bytes, self.total.memory_bytes, self.total.slice_count


LARGE = SMALL_SLICE_BYTES + 1


def test_bytes_that_follow_each_other_are_sent_together() -> None:
    sending = Sending()
    sending.put(b"head", bytearray(b"body"), memoryview(b"tail"), b"")
    assert sending.channel.sent == [("send", b"headbodytail", False)]
    assert sending.counts == (0, 0, 0)


@pytest.mark.parametrize("at_once", [1, 3, 4, 5, 7, 100])
def test_what_the_channel_does_not_take_is_sent_when_it_takes_more(at_once: int) -> None:
    sending = Sending(at_once)
    sending.put(b"head", b"body", b"", b"tail")
    for _ in range(20):
        if sending.channel.writable is None:
            break
        sending.channel.writable()
        assert sending.channel.writable is None
        sending.outbox.flush()
    assert sending.stream == b"headbodytail"
    assert sending.counts == (0, 0, 0)


def test_nothing_is_sent_while_the_channel_takes_nothing() -> None:
    sending = Sending()
    sending.channel.calls_left = 0
    sending.put(b"head")
    sending.channel.calls_left = 1
    sending.put(b"body")
    assert (sending.stream, sending.counts) == (b"", (8, 8, 0))
    assert sending.channel.writable is not None
    sending.channel.writable()
    assert sending.sendable_count == 1
    sending.outbox.flush()
    assert sending.stream == b"headbody"


@pytest.mark.parametrize(("count", "is_small"), [(1, True), (SMALL_SLICE_BYTES, True), (LARGE, False)])
def test_small_slices_are_sent_with_their_neighbours_and_large_ones_from_the_file(count: int, is_small: bool) -> None:
    sending, file = Sending(), CachedFile(bytes(range(256)) * 40)
    sending.put(b"head", file.slice(7, count), b"tail")
    assert sending.stream == b"head" + file.data[7 : 7 + count] + b"tail"
    kinds = [(kind, more) for kind, _, more in sending.channel.sent]
    assert kinds == ([("send", False)] if is_small else [("send", True), ("file", False), ("send", False)])
    assert sending.counts == (0, 0, 0)


def test_small_slices_are_read_ahead_up_to_a_limit() -> None:
    sending, file = Sending(), CachedFile(bytes(SMALL_SLICE_BYTES))
    count = SMALL_SLICES_BYTES_MAX // SMALL_SLICE_BYTES
    sending.channel.calls_left = 1
    sending.put(b"", *[file.slice(0, SMALL_SLICE_BYTES)] * (count + 1))
    (first, *_) = sending.channel.sent
    assert (len(first[1]), first[2]) == (SMALL_SLICES_BYTES_MAX, True)
    assert sending.counts == (SMALL_SLICE_BYTES, 0, 1)


def test_a_small_slice_that_is_not_cached_is_read_by_a_worker_first() -> None:
    async def body() -> None:
        sending, file = Sending(), CachedFile(b"0123456789", is_cached=False)
        sending.put(b"head", file.slice(2, 5))
        assert sending.stream == b"head"
        ((_, future),) = sending.reads
        sending.outbox.flush()
        assert len(sending.reads) == 1
        future.set_result(None)
        await asyncio.sleep(0)
        assert sending.sendable_count == 1
        sending.outbox.flush()  # what was read is believed to be cached, even if it is not any more
        assert sending.stream == b"head23456"
        assert sending.counts == (0, 0, 0)

    asyncio.run(body())


def test_a_slice_is_sent_in_parts_each_of_which_is_cached() -> None:
    async def body() -> None:
        sending, file = Sending(at_once=LARGE), CachedFile(bytes(range(250)) * 100)
        sending.put(file.slice(5, 2 * LARGE + 3))
        assert sending.stream == file.data[5 : 5 + 2 * LARGE + 3]
        assert [len(data) for _, data, _ in sending.channel.sent] == [LARGE, LARGE, 3]
        assert sending.counts == (0, 0, 0)

    asyncio.run(body())


def test_a_worker_that_fails_ends_the_connection() -> None:
    async def body() -> None:
        sending, file = Sending(), CachedFile(bytes(LARGE), is_cached=False)
        sending.put(file.slice(0, LARGE))
        sending.reads[0][1].set_exception(OSError("the disk is gone"))
        await asyncio.sleep(0)
        (error,) = sending.errors
        assert isinstance(error, UnreadableSlice)
        assert error.file is file  # type: ignore[comparison-overlap]
        assert "/data/t-0/0.log cannot be read: the disk is gone" in str(error)
        assert (sending.outbox.queued_bytes, sending.sendable_count) == (0, 0)

    asyncio.run(body())


def test_a_read_that_ends_after_the_connection_concerns_nobody() -> None:
    async def body() -> None:
        sending, file = Sending(), CachedFile(bytes(LARGE), is_cached=False)
        sending.put(file.slice(0, LARGE))
        sending.outbox.close()
        sending.reads[0][1].set_exception(OSError("the disk is gone"))
        await asyncio.sleep(0)
        assert (sending.errors, sending.sendable_count) == ([], 0)

    asyncio.run(body())


def test_a_file_that_ends_too_early_ends_the_connection() -> None:
    sending, file = Sending(), CachedFile(bytes(LARGE))
    sending.put(file.slice(10, LARGE))
    (error,) = sending.errors
    assert f"it ends before byte {LARGE}" in str(error)
    sending = Sending()
    sending.put(b"head", CachedFile(b"12345").slice(3, 5))
    assert isinstance(sending.errors[0], UnreadableSlice)


@pytest.mark.parametrize("count", [5, LARGE])
def test_a_file_that_cannot_be_read_ends_the_connection(count: int) -> None:
    sending, file = Sending(), CachedFile(bytes(LARGE), error=OSError("the disk is gone"))
    sending.channel.error = OSError("the disk is gone")
    sending.put(file.slice(0, count), b"tail")
    (error,) = sending.errors
    assert isinstance(error, UnreadableSlice)
    assert sending.outbox.queued_bytes == 0


def test_a_client_that_is_gone_is_no_error_of_the_file() -> None:
    sending, file = Sending(), CachedFile(bytes(LARGE))
    sending.channel.error = ConnectionResetError("gone")
    sending.put(file.slice(0, LARGE))
    assert sending.errors == [sending.channel.error]


def test_one_connection_sends_a_limited_number_of_bytes_before_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "SLICE_BYTES", 3 * LARGE)
    sending, file = Sending(), CachedFile(bytes(LARGE))
    sending.put(*[file.slice(0, LARGE)] * 6)
    assert len(sending.channel.sent) == 4  # up to the limit, and once beyond it
    assert sending.counts == (2 * LARGE, 0, 2)
    assert sending.channel.writable is not None
    sending.channel.writable()
    sending.outbox.flush()
    assert sending.counts == (0, 0, 0)


def test_a_closed_outbox_sends_nothing_and_reports_nothing() -> None:
    sending = Sending()
    sending.channel.calls_left = 0
    sending.put(b"head")
    sending.outbox.close()
    assert sending.outbox.queued_bytes == 0
    assert sending.channel.writable is not None
    sending.channel.writable()
    sending.outbox.flush()
    assert (sending.stream, sending.sendable_count) == (b"", 0)
