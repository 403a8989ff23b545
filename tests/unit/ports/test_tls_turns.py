"""Many TLS connections that are ready at once: how much processor time one iteration of the event loop gives them."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from flowstone.ports.files import File
from flowstone.ports.loops import Turns
from flowstone.ports.network import Channel, SystemNetwork
from flowstone.ports.system_files import SystemFiles
from flowstone.ports.tls import TlsChannel, secure
from tests.unit.ports.test_tls import TIMEOUT_S, client_side, run, server_side

HANDSHAKES, READERS, FILE_BYTES = 400, 30, 4 << 20
# A slice is a millisecond, and so is a step. Without turns one iteration takes fifty and more.
ITERATION_S_MAX = 0.015


class Iterations:
    """Measures the processor time of the thread in each iteration of the loop, so that other programs do not count."""

    def __init__(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), False
        self._began_s = time.thread_time()
        self.longest_s = 0.0
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        now_s = time.thread_time()
        self.longest_s, self._began_s = max(self.longest_s, now_s - self._began_s), now_s
        if not self._is_over:
            self._loop.call_soon(self._tick)

    def end(self) -> float:
        self._is_over = True
        return self.longest_s


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = client_side().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_handshakes_that_are_ready_at_once_share_iterations_with_others():
    async def test() -> None:
        turns, context = Turns(asyncio.get_running_loop()), server_side()
        accepted: list[TlsChannel] = []

        def accept(channel: Channel) -> None:
            accepted.append(secure(channel, context, turns, turns))
            accepted[-1].handshake(lambda _error: None)

        listener = SystemNetwork().bind("127.0.0.1", 0, accept)
        hello = client_hello()
        clients = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(HANDSHAKES)]
        for client in clients:
            client.sendall(hello)
        iterations = Iterations()
        listener.start()
        for client in clients:
            client.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(client, 5)
        longest_s = iterations.end()
        listener.close()
        for each in (*accepted, *clients):
            each.close()
        assert len(accepted) == HANDSHAKES
        assert longest_s < ITERATION_S_MAX

    run(test())


def read_all(port: int, greeted: threading.Barrier) -> None:
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        client_side().wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        greeted.wait(TIMEOUT_S)
        left, buffer = FILE_BYTES, bytearray(1 << 16)
        while left:
            left -= tls.recv_into(buffer)


def start_sending(channel: TlsChannel, file: File, done: Callable[[], None]) -> None:
    """Send the file as a connection does: until it would block, and again whenever the channel is writable."""
    position = 0

    def send() -> None:
        nonlocal position
        channel.on_writable(None)
        try:
            while position < FILE_BYTES:
                position += channel.send_file(file, position, FILE_BYTES - position)
        except BlockingIOError:
            channel.on_writable(send)
        else:
            done()

    send()


def test_long_responses_to_many_share_iterations_with_others_and_are_complete(tmp_path):
    (tmp_path / "file").write_bytes(os.urandom(FILE_BYTES))

    async def test() -> None:
        loop = asyncio.get_running_loop()
        turns, context, file = Turns(loop), server_side(), SystemFiles().open(str(tmp_path / "file"))
        channels: list[TlsChannel] = []
        shaken = asyncio.Semaphore(0)
        sent = asyncio.Semaphore(0)

        def accept(channel: Channel) -> None:
            channels.append(secure(channel, context, turns, turns))
            channels[-1].handshake(lambda _error: shaken.release())

        listener = SystemNetwork().bind("127.0.0.1", 0, accept)
        listener.start()
        greeted = threading.Barrier(READERS + 1)
        readers = [threading.Thread(target=read_all, args=(listener.port, greeted)) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        for _ in readers:
            await shaken.acquire()
        await asyncio.to_thread(greeted.wait, TIMEOUT_S)
        iterations = Iterations()
        for channel in channels:
            start_sending(channel, file, sent.release)
        for _ in readers:
            await sent.acquire()
        longest_s = iterations.end()
        await asyncio.to_thread(lambda: [reader.join(TIMEOUT_S) for reader in readers])
        listener.close()
        for channel in channels:
            channel.close()
        file.close()
        assert not any(reader.is_alive() for reader in readers)
        assert longest_s < ITERATION_S_MAX

    run(test())
