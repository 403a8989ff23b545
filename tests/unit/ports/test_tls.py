"""TLS channels between two ends on one loop: bytes in both directions, small and large, files, and broken peers."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from flowstone.ports.loops import Turns, new_event_loop
from flowstone.ports.network import Channel, SystemNetwork, wait_readable
from flowstone.ports.pem_source import ClientAuth, PemSource
from flowstone.ports.system_files import SystemFiles
from flowstone.ports.tls import TlsChannel, TlsStream, secure, secure_client
from flowstone.ports.tls_contexts import client_context, server_context
from tests.support.security.secured import authority

TIMEOUT_S = 10.0


def server_side(client_auth: ClientAuth = ClientAuth.NONE) -> ssl.SSLContext:
    issued = authority().issue("broker", ["localhost", "127.0.0.1"])
    source = PemSource(
        key=issued.key, certificate_chain=issued.certificate, trusted_certificates=authority().certificate
    )
    return server_context(source, client_auth)


def client_side(**more: Any) -> ssl.SSLContext:
    return client_context(PemSource(trusted_certificates=authority().certificate, **more))


def secured(channel: Channel, context: ssl.SSLContext) -> TlsChannel:
    turns = Turns(asyncio.get_running_loop())
    return secure(channel, context, turns, turns)


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, TIMEOUT_S))


async def pair(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[TlsChannel, TlsChannel]:
    """Both ends of a connection after the handshake."""
    shaken: asyncio.Future[TlsChannel] = asyncio.get_running_loop().create_future()
    accepted_channels: list[TlsChannel] = []

    def accepted(channel: Channel) -> None:
        tls = secured(channel, server)
        tls.handshake(lambda error: shaken.set_exception(error) if error else shaken.set_result(tls))
        accepted_channels.append(tls)

    network = SystemNetwork()
    listener = network.bind("127.0.0.1", 0, accepted)
    listener.start()
    try:
        plain = await network.connect("127.0.0.1", listener.port, TIMEOUT_S)
        there = await secure_client(plain, client, "127.0.0.1", TIMEOUT_S)
        return await shaken, there
    except BaseException:
        with suppress(OSError):
            await shaken
        for each in accepted_channels:
            each.close()
        raise
    finally:
        listener.close()


async def received(channel: TlsChannel, count: int, buffer_bytes: int = 1 << 16) -> bytes:
    """So many bytes, or fewer if the other side closes."""
    data, done = bytearray(), asyncio.get_running_loop().create_future()
    buffer = memoryview(bytearray(buffer_bytes))

    def readable() -> None:
        with suppress(BlockingIOError):
            got = channel.receive_into(buffer[: min(buffer_bytes, count - len(data))])
            data.extend(buffer[:got])
            if (not got or len(data) == count) and not done.done():
                done.set_result(None)

    channel.on_readable(readable)
    await done
    channel.on_readable(None)
    return bytes(data)


async def sent(channel: TlsChannel, send: Callable[[int], int], count: int) -> None:
    """Call `send` with the position until all bytes are sent, whenever the channel accepts more."""
    position, done = 0, asyncio.get_running_loop().create_future()

    def writable() -> None:
        nonlocal position
        with suppress(BlockingIOError):
            while position < count:
                position += send(position)
            channel.on_writable(None)
            if not done.done():
                done.set_result(None)

    channel.on_writable(writable)
    await done


@pytest.mark.parametrize("buffer_bytes", [7, 4096, 1 << 20])
def test_bytes_arrive_whatever_the_buffers_are(buffer_bytes):
    async def test() -> None:
        here, there = await pair(server_side(), client_side())
        data = os.urandom(300_000 if buffer_bytes > 100 else 2_000)
        parts = [data[:10], data[10:1000], memoryview(data)[1000:]]

        def send(position: int) -> int:
            left = b"".join(parts)[position:]
            return here.send([left[:5], left[5:]]) if len(left) > 5 else here.send([left])

        _, got = await asyncio.gather(sent(here, send, len(data)), received(there, len(data), buffer_bytes))
        assert got == data
        here.close()
        assert await received(there, 1) == b""
        there.close()

    run(test())


def test_bytes_of_a_file_are_sent_to_a_slow_reader(tmp_path):
    async def test() -> None:
        here, there = await pair(server_side(), client_side())
        data = os.urandom(8 << 20)
        (tmp_path / "file").write_bytes(data)
        file = SystemFiles().open(str(tmp_path / "file"))
        sending = asyncio.ensure_future(
            sent(here, lambda at: here.send_file(file, at, min(1 << 20, len(data) - at)), len(data))
        )
        await asyncio.sleep(0.05)
        assert not sending.done()
        assert await received(there, len(data)) == data
        await sending
        assert here.send_file(file, len(data), 1) == 0
        here.close()
        there.close()
        file.close()

    run(test())


def test_the_client_checks_the_authority_and_the_host():
    async def test() -> None:
        with pytest.raises(ssl.SSLCertVerificationError):
            await pair(server_side(), client_context(PemSource()))
        network, other = SystemNetwork(), authority().issue("elsewhere", ["elsewhere"])
        source = PemSource(key=other.key, certificate_chain=other.certificate)
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            await pair(server_context(source, ClientAuth.NONE), client_side())
        assert network

    run(test())


def test_a_client_certificate_is_shown_to_the_server():
    async def test() -> None:
        alice = authority().issue("alice")
        client = client_side(key=alice.key, certificate_chain=alice.certificate)
        here, there = await pair(server_side(ClientAuth.REQUIRED), client)
        assert here.peer_certificate == ssl.PEM_cert_to_DER_cert(alice.certificate)
        here.close()
        there.close()

    run(test())


def test_bytes_that_are_no_tls_end_the_handshake():
    async def test() -> None:
        failed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        channels = []

        def accepted(channel: Channel) -> None:
            channels.append(secured(channel, server_side()))
            channels[0].handshake(failed.set_result)

        network = SystemNetwork()
        listener = network.bind("127.0.0.1", 0, accepted)
        listener.start()
        plain = await network.connect("127.0.0.1", listener.port, TIMEOUT_S)
        plain.send([b"\0\0\0\x10not a handshake of TLS"])
        assert isinstance(await failed, ssl.SSLError)
        channels[0].close()
        plain.close()
        listener.close()

    run(test())


def test_a_reset_is_a_connection_error():
    async def test() -> None:
        here, there = await pair(server_side(), client_side())
        there.break_off()
        await asyncio.sleep(0.01)
        buffer = memoryview(bytearray(10))
        with suppress(ConnectionError):
            assert here.receive_into(buffer) == 0
        with suppress(ConnectionError):
            here.send([b"x" * 10_000])  # the first bytes may still be taken
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectionError):
            here.send([b"x" * 10_000])
        here.close()
        there.close()

    run(test())


def test_a_blocking_stream_sends_receives_and_times_out():
    ready, port = threading.Event(), 0
    stop: list[Callable[[], None]] = []

    async def echo() -> None:
        nonlocal port
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        channels: list[TlsChannel] = []

        def readable() -> None:
            buffer = memoryview(bytearray(1 << 16))
            with suppress(BlockingIOError):
                while (count := channels[0].receive_into(buffer)) > 0:
                    channels[0].send([buffer[:count]])

        def accepted(channel: Channel) -> None:
            channels.append(secured(channel, server_side()))
            channels[0].handshake(lambda _error: channels[0].on_readable(readable))

        listener = SystemNetwork().bind("127.0.0.1", 0, accepted)
        listener.start()
        port = listener.port
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        ready.set()
        await done.wait()
        listener.close()
        channels[0].close()

    thread = threading.Thread(target=run, args=(echo(),))
    thread.start()
    assert ready.wait(TIMEOUT_S)
    stream = TlsStream("127.0.0.1", port, TIMEOUT_S, client_side())
    buffer = memoryview(bytearray(6))
    stream.send_all([b"abc", b"", b"defgh"], TIMEOUT_S)
    stream.receive_all(buffer, TIMEOUT_S)
    assert bytes(buffer) == b"abcdef"
    assert stream.has_received
    assert wait_readable([stream], 0) == [stream]
    stream.receive_all(buffer[:2], TIMEOUT_S)
    assert not stream.has_received
    with pytest.raises(TimeoutError):
        stream.receive_all(buffer, 0.05)
    stream.close()
    stop[0]()
    thread.join()
