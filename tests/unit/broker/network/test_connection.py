import asyncio
import contextlib
import struct
from collections.abc import Callable

import pytest

from flowstone.broker.dispatch.deferred import Answer, Deferred
from flowstone.broker.network.busy_poll import ROW_MAX, BusyPoller
from flowstone.broker.network.connection import Connection
from flowstone.broker.network.outbox import SMALL_SLICE_BYTES, SMALL_SLICES_BYTES_MAX, UnreadableSlice
from flowstone.broker.network.receive_buffers import BufferPool
from flowstone.broker.network.unsent_bytes import UnsentTotal
from flowstone.broker.requests.chunks import Chunk
from flowstone.broker.requests.session import MUTE_MS_MAX, ClientSession
from flowstone.ports.simulated_files import SimulatedFile, SimulatedFiles
from flowstone.ports.simulated_network import SimulatedChannel, channel_pair


class HostTimer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due, self.callback, self.is_cancelled = due, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Host:
    """A server that answers every request with itself, at once or when told to."""

    def __init__(self) -> None:
        self.request_bytes_max = 1 << 20
        self.pipelined_requests_max = 1000
        self.queued_response_bytes_max = 1 << 20
        self.unsent = UnsentTotal()
        self.busy_poller = BusyPoller(lambda look: None, self.monotonic, poll_s=0)
        self.buffers = BufferPool(1 << 20)
        self.receive_buffer = memoryview(bytearray(64 * 1024))
        self.reasons: list[str] = []
        self.unreadable_paths: list[str] = []
        self.requests: list[bytes] = []
        self.deferred: dict[bytes, asyncio.Future[list[Chunk]]] = {}
        self.now = 0.0
        self.timers: list[HostTimer] = []

    def monotonic(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> HostTimer:
        timer = HostTimer(self.now + delay_s, callback)
        self.timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.due <= self.now]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()

    def read(self, function: Callable[[], object]) -> asyncio.Future[object]:
        return asyncio.get_running_loop().run_in_executor(None, function)

    def answer(self, frame: memoryview, _session: ClientSession) -> Answer:
        request = bytes(frame)
        self.requests.append(request)
        if request.startswith(b"later"):
            future = self.deferred[request] = asyncio.get_running_loop().create_future()
            return Deferred(future, lambda done: done.result())
        if request.startswith(b"silent"):
            return None
        return [framed(request)]

    def unreadable(self, slice_error: UnreadableSlice) -> None:
        self.unreadable_paths.append(slice_error.file.path)

    def closed(self, connection: Connection, reason: str) -> None:
        self.reasons.append(reason)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def run(scenario: Callable[[Host, SimulatedChannel, Connection], object], host: Host | None = None) -> None:
    async def main() -> None:
        server_side, client_side = channel_pair()
        connection_host = host or Host()
        connection = Connection(connection_host, server_side, "PLAINTEXT")
        result = scenario(connection_host, client_side, connection)
        if asyncio.iscoroutine(result):
            await result

    asyncio.run(main())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def received(client: SimulatedChannel) -> bytes:
    data = b""
    buffer = memoryview(bytearray(1 << 16))
    while True:
        try:
            count = client.receive_into(buffer)
        except BlockingIOError:
            return data
        if not count:
            return data
        data += bytes(buffer[:count])


def test_requests_sent_together_are_answered_in_order():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"one") + framed(b"two") + framed(b"three")])
        await turns()
        assert received(client) == framed(b"one") + framed(b"two") + framed(b"three")

    run(scenario)


def test_an_answer_that_took_long_does_not_count_as_unread_before_it_is_sent():
    """The server closes connections whose answers were not taken for a time, which counts from the last progress."""

    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"later")])
        await turns()
        host.now = 3600.0
        host.deferred[b"later"].set_result([framed(b"at last")])
        while not connection._flush_scheduled:
            await asyncio.sleep(0)
        assert not connection.is_unread, "the client has had no chance to take it"
        await turns()
        assert received(client) == framed(b"at last")
        assert connection.last_progress == host.now

    run(scenario)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5, 7])
def test_a_request_may_arrive_in_pieces_of_any_size(piece_bytes: int):
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        stream = b"".join(framed(b"request %d" % number) for number in range(5))
        for at in range(0, len(stream), piece_bytes):
            client.send([stream[at : at + piece_bytes]])
            await turns(3)
        assert received(client) == stream
        assert host.buffers.taken_bytes == 0

    run(scenario)


def test_a_request_larger_than_the_receive_buffer_arrives_whole():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        body = bytes(range(256)) * 2000
        stream = memoryview(framed(b"small") + framed(body) + framed(b"after"))
        got = b""
        while stream:
            with contextlib.suppress(BlockingIOError):
                stream = stream[client.send([stream]) :]
            await turns(3)
            got += received(client)
        await turns()
        got += received(client)
        assert host.requests == [b"small", body, b"after"]
        assert got == framed(b"small") + framed(body) + framed(b"after")

    run(scenario)


def test_an_answer_waits_for_those_before_it():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"later 1") + framed(b"two") + framed(b"later 3")])
        await turns()
        assert received(client) == b""
        host.deferred[b"later 3"].set_result([framed(b"3")])
        await turns()
        assert received(client) == b""
        host.deferred[b"later 1"].set_result([framed(b"1")])
        await turns()
        assert received(client) == framed(b"1") + framed(b"two") + framed(b"3")

    run(scenario)


def test_a_request_without_an_answer_leaves_no_gap():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"silent") + framed(b"next")])
        await turns()
        assert received(client) == framed(b"next")

    run(scenario)


@pytest.mark.parametrize("size", [0, -1, 2**31 - 1, (1 << 20) + 1, 0x47455420])
def test_an_impossible_length_closes_the_connection_before_anything_is_allocated(size: int):
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([struct.pack(">i", size) + b"GET / HTTP"])
        await turns()
        assert len(host.reasons) == 1
        assert "bytes" in host.reasons[0]
        assert host.buffers.taken_bytes == 0

    run(scenario)


def test_reading_pauses_while_too_many_requests_wait_and_goes_on_afterwards():
    host = Host()
    host.pipelined_requests_max = 3

    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([b"".join(framed(b"later %d" % number) for number in range(10))])
        await turns()
        assert len(host.requests) == 3
        answered = b""
        for number in range(10):
            host.deferred[b"later %d" % number].set_result([framed(b"%d" % number)])
            await turns()
            answered += received(client)
        assert answered == b"".join(framed(b"%d" % number) for number in range(10))

    run(scenario, host)


def test_whoever_does_not_read_is_not_read_from():
    host = Host()
    host.queued_response_bytes_max = 100_000

    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.capacity_bytes = 1000
        sent = 0
        for _ in range(200):
            try:
                sent += client.send([framed(b"x" * 9996)])
            except BlockingIOError:
                break
            await turns(2)
        assert sent < 2_000_000
        assert len(host.requests) <= 12
        client.capacity_bytes = 1 << 20
        got = b""
        for _ in range(100):
            got += received(client)
            await turns(3)
        assert len(got) == sent - sent % 10_000

    run(scenario, host)


def test_a_connection_waits_for_space_in_the_buffer_pool():
    host = Host()
    host.buffers = BufferPool(100_000)

    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        other = host.buffers.take(90_000)
        assert other is not None
        stream = framed(b"y" * 200_000)
        client.send([stream[:50_000]])
        await turns()
        assert host.requests == []
        host.buffers.give_back(other)
        client.send([stream[50_000:]])
        await turns(40)
        assert host.requests == [b"y" * 200_000]

    run(scenario, host)


def test_answers_still_go_out_after_the_client_has_closed_its_side():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"later")])
        await turns()
        connection.finish()
        assert not host.reasons
        host.deferred[b"later"].set_result([framed(b"done")])
        await turns()
        assert received(client) == framed(b"done")
        assert host.reasons == [""]

    run(scenario)


def test_closing_cancels_what_is_parked():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"later")])
        await turns()
        connection.close()
        await turns()
        assert host.deferred[b"later"].cancelled()

    run(scenario)


def test_a_fast_reader_does_not_keep_the_loop_to_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flowstone.broker.network.outbox.SLICE_BYTES", 50_000)

    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.capacity_bytes = 1 << 30
        client.send([framed(b"later")])
        await turns()
        others: list[int] = []
        file = SimulatedFiles().open("/log", create=True)
        file.write(0, [bytes(10_000)])
        host.deferred[b"later"].set_result([Slice(file, 0, 10_000) for _ in range(100)])
        got = 0
        for _ in range(200):
            asyncio.get_running_loop().call_soon(others.append, got)
            await asyncio.sleep(0)
            got += len(received(client))
            if got == 1_000_000:
                break
        assert got == 1_000_000
        assert len(set(others)) >= 5

    run(scenario)


class ColdFile(SimulatedFile):
    """A file that is in the page cache only after it has been read."""

    reads = 0

    def is_cached(self, position: int, count: int) -> bool:
        return self.reads > 0

    def read_cached(self, position: int, count: int) -> bytes | None:
        return super().read_cached(position, count) if self.reads > 0 else None

    def read(self, position: int, count: int) -> bytes:
        type(self).reads += 1
        return super().read(position, count)


class Slice:
    def __init__(self, file: SimulatedFile, position: int, count: int) -> None:
        self.file, self.position, self._count = file, position, count

    def __len__(self) -> int:
        return self._count


def test_a_slice_of_a_cold_file_is_read_by_a_worker_and_then_sent():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        files = SimulatedFiles()
        file = files.open("/log", create=True)
        file.write(0, [b"0123456789"])
        cold = ColdFile(files, "/log", file._node)
        client.send([framed(b"later")])
        await turns()
        host.deferred[b"later"].set_result([b"head", Slice(cold, 2, 5), b"tail"])
        got = b""
        for _ in range(200):
            await asyncio.sleep(0.001)
            got += received(client)
            if got.endswith(b"tail"):
                break
        assert got == b"head" + b"23456" + b"tail"
        assert ColdFile.reads >= 1

    run(scenario)


@pytest.mark.parametrize("cached", [True, False])
def test_a_slice_that_cannot_be_read_closes_the_connection_and_is_reported(cached: bool):
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        files = SimulatedFiles()
        file = files.open("/log", create=True)
        file.write(0, [b"0123456789"])
        broken = file if cached else UncachedFile(files, "/log", file._node)
        client.send([framed(b"later")])
        await turns()
        files.fail_next("read")
        host.deferred[b"later"].set_result([b"head", Slice(broken, 2, 5)])
        for _ in range(200):
            await asyncio.sleep(0.001)
            if host.reasons:
                break
        assert host.unreadable_paths == ["/log"]
        assert "/log cannot be read" in host.reasons[0]

    run(scenario)


class UncachedFile(SimulatedFile):
    def is_cached(self, position: int, count: int) -> bool:
        return False

    def read_cached(self, position: int, count: int) -> bytes | None:
        return None


@pytest.mark.parametrize(
    ("slice_bytes", "calls"), [(SMALL_SLICE_BYTES, ["send"]), (SMALL_SLICE_BYTES + 1, ["send", "send_file", "send"])]
)
def test_a_small_slice_leaves_together_with_what_is_around_it(slice_bytes: int, calls: list[str]):
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        file = SimulatedFiles().open("/log", create=True)
        file.write(0, [b"x" * slice_bytes])
        client.send([framed(b"later")])
        await turns()
        made: list[str] = []
        channel = client.other
        send, send_file = channel.send, channel.send_file

        def counted_send(buffers, *, more=False):
            made.append("send")
            return send(buffers, more=more)

        def counted_send_file(file, position, count):
            made.append("send_file")
            data = file.read(position, count)
            return send([data])

        channel.send, channel.send_file = counted_send, counted_send_file
        host.deferred[b"later"].set_result([b"head", Slice(file, 0, slice_bytes), b"tail"])
        await turns()
        assert received(client) == b"head" + b"x" * slice_bytes + b"tail"
        assert made == calls
        assert (host.unsent.memory_bytes, host.unsent.slice_count) == (0, 0)
        channel.send, channel.send_file = send, send_file

    run(scenario)


def test_small_slices_that_nobody_takes_are_not_all_read():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.capacity_bytes = 10
        file = SimulatedFiles().open("/log", create=True)
        file.write(0, [bytes(SMALL_SLICE_BYTES)])
        client.send([framed(b"later")])
        await turns()
        host.deferred[b"later"].set_result([b"head", *(Slice(file, 0, SMALL_SLICE_BYTES) for _ in range(100))])
        for _ in range(20):
            await turns()
            assert host.unsent.memory_bytes <= SMALL_SLICES_BYTES_MAX
            received(client)
        connection.close()
        assert (host.unsent.memory_bytes, host.unsent.slice_count) == (0, 0)

    run(scenario)


def test_a_closed_connection_reads_nothing_more() -> None:
    def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"too late")])
        connection.close()
        connection.try_read()
        assert host.requests == []

    run(scenario)


def test_answers_that_wait_for_an_earlier_one_count_as_not_yet_read() -> None:
    host = Host()
    host.queued_response_bytes_max = 50_000

    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        for request in (b"later 1", b"later 2"):
            client.send([framed(request)])
            await turns()
        host.deferred[b"later 2"].set_result([framed(b"x" * 60_000)])
        await turns()
        client.send([framed(b"not before the first is answered")])
        await turns()
        assert len(host.requests) == 2
        host.deferred[b"later 1"].set_result([framed(b"first")])
        await turns()
        assert len(received(client)) > 60_000
        await turns()
        assert len(host.requests) == 3

    run(scenario, host)


def test_what_has_come_of_a_request_stays_whole_while_others_receive() -> None:
    """All connections receive into one buffer."""

    async def main() -> None:
        host = Host()
        channels = [channel_pair() for _ in range(2)]
        connections = [Connection(host, server_side, "PLAINTEXT") for server_side, _ in channels]
        (_, first), (_, second) = channels
        request = framed(b"in two pieces")
        first.send([request[:3]])
        await turns()
        second.send([framed(b"another" * 100)])  # its length begins with other bytes
        await turns()
        first.send([request[3:]])
        await turns()
        assert host.requests == [b"another" * 100, b"in two pieces"]
        for connection in connections:
            connection.close()

    asyncio.run(main())


def test_a_request_may_be_as_large_as_the_limit_and_no_larger() -> None:
    host = Host()
    host.request_bytes_max = 1000

    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"x" * 1000)])
        await turns()
        assert host.requests == [b"x" * 1000]
        client.send([framed(b"x" * 1001)])
        await turns()
        assert len(host.requests) == 1
        assert len(host.reasons) == 1

    run(scenario, host)


def test_a_muted_connection_reads_no_requests_until_the_mute_is_over():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        connection.session.throttle(host.now, 500)
        client.send([framed(b"one")])
        await turns()
        assert host.requests == []
        host.advance(0.499)
        await turns()
        assert host.requests == []
        host.advance(0.001)
        await turns()
        assert received(client) == framed(b"one")

    run(scenario)


def test_requests_received_with_the_one_that_mutes_their_connection_wait_for_the_end_of_the_mute():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        answer = host.answer

        def mute(frame: memoryview, session: ClientSession) -> Answer:
            session.throttle(host.now, 500)
            return answer(frame, session)

        connection.answer = mute
        client.send([framed(b"one") + framed(b"two")])
        await turns()
        assert received(client) == framed(b"one"), "the response of a throttled request is not held back"
        host.advance(0.5)
        await turns()
        assert received(client) == framed(b"two")

    run(scenario)


def test_a_second_throttle_prolongs_a_mute_and_does_not_shorten_it():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        connection.session.throttle(host.now, 1000)
        connection.session.throttle(host.now, 2000)
        connection.session.throttle(host.now, 500)
        client.send([framed(b"one")])
        host.advance(1.5)
        await turns()
        assert host.requests == []
        host.advance(0.5)
        await turns()
        assert host.requests == [b"one"]

    run(scenario)


def test_a_mute_lasts_no_longer_than_its_limit():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        connection.session.throttle(host.now, 100 * MUTE_MS_MAX)
        client.send([framed(b"one")])
        host.advance(MUTE_MS_MAX / 1000)
        await turns()
        assert host.requests == [b"one"]

    run(scenario)


def test_an_answer_that_was_waited_for_is_sent_while_its_connection_is_muted():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"later")])
        await turns()
        connection.session.throttle(host.now, 500)
        host.deferred[b"later"].set_result([framed(b"at last")])
        await turns()
        assert received(client) == framed(b"at last")

    run(scenario)


def test_a_request_that_was_arriving_is_not_late_after_a_mute():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        client.send([framed(b"one")[:-1]])
        await turns()
        connection.session.throttle(host.now, 500)
        host.advance(0.5)
        assert (connection.frame_started, connection.last_received) == (host.now, host.now)
        client.send([framed(b"one")[-1:]])
        await turns()
        assert host.requests == [b"one"]

    run(scenario)


def test_a_muted_connection_can_be_closed():
    async def scenario(host: Host, client: SimulatedChannel, connection: Connection) -> None:
        connection.session.throttle(host.now, 500)
        connection.close()
        assert all(timer.is_cancelled for timer in host.timers)
        connection.session.throttle(host.now, 1000)  # by something that was still under way
        assert all(timer.is_cancelled for timer in host.timers)

    run(scenario)


def test_requests_close_together_have_the_loop_poll_for_the_next() -> None:
    host = Host()
    looks: list[Callable[[], None]] = []
    host.busy_poller = BusyPoller(looks.append, host.monotonic, poll_s=0.001)

    async def scenario(_: Host, client: SimulatedChannel, connection: Connection) -> None:
        for _ in range(ROW_MAX):
            client.send([framed(b"request")])
            await turns()
        assert looks
        connection.close()

    run(scenario, host)
