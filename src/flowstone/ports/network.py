"""Sockets: the only module that uses them.

A `Channel` is one byte stream with non-blocking calls and readiness callbacks. Its owner decides into which buffer to
read and what to send next. A request therefore stays in the buffer into which it was received, and file bytes go from
the page cache to the socket without passing through Python.

A `Network` creates channels for listeners and for outgoing connections; `simulated_network` has an in-memory
implementation.

A `Stream` is a client's connection with blocking calls, for programs without an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from flowstone.ports.files import IOVECS_MAX, File
from flowstone.types import Bytes

LISTEN_BACKLOG = 1024
ACCEPTS_PER_WAKEUP_MAX = 64
# Accepting ends sooner when it has taken this long: other connections are served before the rest.
ACCEPT_SLICE_S = 0.001
# How long accepting pauses after the process has run out of descriptors or memory.
ACCEPT_REST_S = 0.1
# Maximum bytes of one send_file call; more would starve the event loop's other connections.
SEND_FILE_BYTES_MAX = 1 << 20
# For modules that only pass a socket on.
Socket: TypeAlias = socket.socket
# The value of SO_LINGER: on, with no time to send the rest.
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Channel(Protocol):
    @property
    def peer(self) -> str: ...

    def receive_into(self, buffer: memoryview) -> int:
        """Return the number of bytes received, 0 at the end of the stream.

        Raises BlockingIOError if no bytes are available yet.
        """
        ...

    def send(self, buffers: Sequence[Bytes], *, more: bool = False) -> int:
        """Return the number of bytes sent; `more` says that other bytes follow immediately.

        Raises BlockingIOError if the send buffer is full.
        """
        ...

    def send_file(self, file: File, position: int, count: int) -> int:
        """Send bytes of a file like `send`; return 0 if the file ends before `position`."""
        ...

    def on_readable(self, callback: Callable[[], None] | None) -> None: ...

    def on_writable(self, callback: Callable[[], None] | None) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None:
        """Close, and drop what was sent and has not arrived yet; the peer finds the connection broken."""
        ...


class Listener(Protocol):
    """A bound address; after `start` it accepts connections and passes each on as a channel."""

    @property
    def port(self) -> int: ...

    def start(self) -> None: ...

    def rest(self, duration_s: float) -> None:
        """Accept no connections for this long; they wait in the system's queue."""
        ...

    def close(self) -> None: ...


Accept: TypeAlias = Callable[[Channel], None]


class Network(Protocol):
    def bind(self, host: str, port: int, accept: Accept, *, send_buffer_bytes: int = -1) -> Listener:
        """Bind `host` and `port` (0: any free port) for the running event loop. Raises OSError if that fails.

        `send_buffer_bytes` is the size of the kernel's send buffer per connection; -1 is the system's default.
        """
        ...

    async def connect(self, host: str, port: int, timeout_s: float) -> Channel:
        """Connect to an address. Raises OSError or TimeoutError if that fails."""
        ...


class SocketReadiness:
    """Base of the channels on a socket: readiness callbacks and closing."""

    __slots__ = ("_descriptor", "_loop", "_reading", "_socket", "_writing", "peer")

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop, self._socket, self.peer = loop, sock, peer
        self._descriptor = sock.fileno()
        self._reading = self._writing = False

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._loop.add_reader(self._descriptor, callback)
        elif self._reading:
            self._loop.remove_reader(self._descriptor)
        self._reading = callback is not None

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._loop.add_writer(self._descriptor, callback)
        elif self._writing:
            self._loop.remove_writer(self._descriptor)
        self._writing = callback is not None

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def break_off(self) -> None:
        """Shut the connection down in both directions, like a broken link; the owner is notified and closes it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self.on_readable(None)
            self.on_writable(None)
            self._socket.close()

    def abort(self) -> None:
        """Close by a reset: the system neither sends nor repeats what it still has to send."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self.close()


class SocketChannel(SocketReadiness):
    __slots__ = ("receive_into",)

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, peer: str) -> None:
        super().__init__(loop, sock, peer)
        self.receive_into: Callable[[memoryview], int] = sock.recv_into  # as the protocol has it

    def send(self, buffers: Sequence[Bytes], *, more: bool = False) -> int:
        flags = socket.MSG_MORE if more and hasattr(socket, "MSG_MORE") else 0
        if len(buffers) == 1:
            return self._socket.send(buffers[0], flags)
        return self._socket.sendmsg(buffers[:IOVECS_MAX], (), flags)

    def send_file(self, file: File, position: int, count: int) -> int:
        return os.sendfile(self._descriptor, file.fileno(), position, min(count, SEND_FILE_BYTES_MAX))

    def release(self) -> tuple[asyncio.AbstractEventLoop, Socket]:
        """Return the loop and the socket for another channel on it; this one is not used any more."""
        self.on_readable(None)
        self.on_writable(None)
        return self._loop, self._socket


class Acceptor:
    """Accepts many connections of a listening socket per iteration of the event loop; uvloop's server accepts one."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, accepted: Callable[[Socket, str], None]
    ) -> None:
        """Accept on `sock`; `accepted` is called with each connection and its peer's address."""
        self._loop, self._socket, self._accepted = loop, sock, accepted
        self._resting: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._ready)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def rest(self, duration_s: float) -> None:
        """Accept no connections for this long; they wait in the system's queue."""
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._resting = self._loop.call_later(duration_s, self._resume)

    def _ready(self) -> None:
        ends_s = time.monotonic() + ACCEPT_SLICE_S
        for _ in range(ACCEPTS_PER_WAKEUP_MAX):
            if self._resting is not None:
                return
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self.rest(ACCEPT_REST_S)
                return
            with contextlib.suppress(OSError):  # the peer reset it before it was accepted
                self._accepted(sock, f"{address[0]}:{address[1]}")
            if time.monotonic() >= ends_s:
                return

    def _resume(self) -> None:
        self._resting = None
        self.start()


class SocketListener(Acceptor):
    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, accept: Accept) -> None:
        """Create a listener on `sock`, whose buffer sizes accepted sockets inherit."""
        super().__init__(loop, sock, lambda accepted, peer: accept(SocketChannel(loop, accepted, peer)))


class SystemNetwork:
    """The machine's network, for the running event loop."""

    def bind(self, host: str, port: int, accept: Accept, *, send_buffer_bytes: int = -1) -> SocketListener:
        sock = listen(host, port, send_buffer_bytes=send_buffer_bytes)
        return SocketListener(asyncio.get_running_loop(), sock, accept)

    async def connect(self, host: str, port: int, timeout_s: float) -> SocketChannel:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = found[0]
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
                _refuse_self(sock)
                return SocketChannel(loop, sock, f"{host}:{port}")
            except BaseException:
                sock.close()
                raise


def listen(host: str, port: int, *, send_buffer_bytes: int = -1) -> Socket:
    """Return a listening socket; connections wait in its backlog until they are accepted.

    Raises OSError if it fails.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(LISTEN_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


class Stream:
    """A client's connection with blocking calls. Raises OSError if it fails, and TimeoutError if a call times out.

    The descriptor stays blocking and the kernel enforces the timeout. One system call then receives a whole response,
    while a non-blocking descriptor would wake the caller for each segment.
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            _refuse_self(self._socket)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timeout_s = -1.0

    def fileno(self) -> int:
        return self._socket.fileno()

    def send_all(self, buffers: Iterable[Bytes], timeout_s: float) -> None:
        self._set_timeout(timeout_s)
        unsent = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while unsent:
            sent = self._call(self._socket.sendmsg, unsent[:IOVECS_MAX])
            while sent:
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                    break
                sent -= len(unsent.pop(0))

    def receive_all(self, buffer: memoryview, timeout_s: float) -> None:
        """Fill the buffer. Raises ConnectionError if the stream ends before."""
        self._set_timeout(timeout_s)
        while buffer:
            received = self._call(self._socket.recv_into, buffer, len(buffer), socket.MSG_WAITALL)
            if not received:
                raise ConnectionError("the broker closed the connection")
            buffer = buffer[received:]

    @property
    def has_received(self) -> bool:
        """Return whether bytes were taken from the descriptor that the caller has not received yet."""
        return False

    def close(self) -> None:
        self._socket.close()

    def _call(self, call: Callable[..., int], *arguments: object) -> int:
        try:
            return call(*arguments)
        except BlockingIOError:
            raise TimeoutError(f"no data was transferred for {self._timeout_s:g} s") from None

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s == self._timeout_s:
            return
        # Zero would mean no timeout.
        microseconds = max(1, int(timeout_s * 1_000_000))
        limit = struct.pack("@ll", *divmod(microseconds, 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._timeout_s = timeout_s


def _refuse_self(sock: socket.socket) -> None:
    """Raise an error if the socket is connected to itself.

    The kernel may choose the target port as the source port if nobody listens on it.
    """
    if sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def wait_readable(streams: Sequence[Stream], timeout_s: float) -> list[Stream]:
    """Return the streams that have bytes or have ended, as soon as there is one; none after the timeout."""
    received = [stream for stream in streams if stream.has_received]
    if received:
        return received
    poll = select.poll()
    by_descriptor = {stream.fileno(): stream for stream in streams}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)]
