"""TLS on raw sockets: channels for the event loop, blocking streams for clients, and contexts from PEM files.

OpenSSL works on the descriptor itself, without buffers of asyncio between them. A channel first completes its
handshake (`TlsChannel.handshake`), then behaves like a `SocketChannel`.

OpenSSL must be offered the same bytes again after a write that would block, so a channel remembers how many it offered.
Bytes that are already decrypted make no descriptor readable, so a channel calls its owner back for them.

Encryption takes time of the event loop. Handshakes and long responses of many connections therefore run in turns
(`loops.Turns`), and other clients wait for one time slice of them at most.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from flowstone.ports.files import File
from flowstone.ports.loops import Turns
from flowstone.ports.network import Channel, SocketChannel, SocketReadiness, Stream
from flowstone.types import Bytes

# The most bytes that OpenSSL is given in one call. More would not be faster; less costs more calls.
PIECE_BYTES_MAX = 64 << 10
# The most bytes of a file that are sent before the time slice is checked.
FILE_BYTES_MAX = 256 << 10

__all__ = ["TlsChannel", "TlsStream", "secure", "secure_client"]


class TlsChannel(SocketReadiness):
    """A channel whose bytes are encrypted. `peer_certificate` is the other side's certificate (DER), if it has one."""

    __slots__ = ("_handshakes", "_offered", "_on_done", "_on_readable", "_on_writable", "_sends", "_ssl", "_yielded")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: ssl.SSLSocket, peer: str, handshakes: Turns, sends: Turns
    ) -> None:
        """Create the channel; its handshake and its long sends take part in these turns."""
        super().__init__(loop, sock, peer)
        self._ssl, self._handshakes, self._sends = sock, handshakes, sends
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._yielded = False  # whether the last send failed because it was not this channel's turn
        self._on_done: Callable[[Exception | None], None] | None = None
        self._offered = 0  # bytes of a write that OpenSSL must be offered again

    # The handshake

    def handshake(self, on_done: Callable[[Exception | None], None]) -> None:
        """Begin the handshake; `on_done` is called once, with an error if it failed."""
        self._on_done = on_done
        self._handshakes.add(self._shake)

    def _shake(self) -> None:
        if self._on_done is None:
            return  # it was closed before its turn
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._wait(readable=self._shake_in_turn, writable=None)
        except ssl.SSLWantWriteError:
            self._wait(readable=None, writable=self._shake_in_turn)
        except (OSError, ValueError) as error:
            self._finish(error)
        else:
            self._finish(None)

    def _shake_in_turn(self) -> None:
        self._wait(readable=None, writable=None)
        self._handshakes.add(self._shake)

    def _wait(self, *, readable: Callable[[], None] | None, writable: Callable[[], None] | None) -> None:
        super().on_readable(readable)
        super().on_writable(writable)

    def _finish(self, error: Exception | None) -> None:
        self._wait(readable=None, writable=None)
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(error)

    @property
    def peer_certificate(self) -> bytes | None:
        return self._ssl.getpeercert(binary_form=True)

    # Receiving

    def receive_into(self, buffer: memoryview) -> int:
        """Return the number of bytes received, 0 at the end of the stream: as many records as fit.

        Raises BlockingIOError if no bytes are available yet, and ConnectionError if the stream is broken.
        """
        receive, size, filled, is_blocked = self._ssl.recv_into, len(buffer), 0, False
        try:
            while filled < size:
                count = receive(buffer[filled:] if filled else buffer)
                if not count:
                    break
                filled += count
        except ssl.SSLWantReadError:
            is_blocked = True
        except OSError as error:
            if not filled:
                raise _broken(error) from error
        if not filled and is_blocked:
            raise BlockingIOError
        if filled and not is_blocked:
            self._loop.call_soon(self._more)  # what follows may not make the descriptor readable
        return filled

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        super().on_readable(callback)
        self._on_readable = callback
        if callback is not None and self._ssl.pending():
            self._loop.call_soon(self._more)

    def _more(self) -> None:
        if self._on_readable is not None:
            self._on_readable()

    # Sending

    def send(self, buffers: Sequence[Bytes], *, more: bool = False) -> int:
        """Return the number of bytes sent. Raises BlockingIOError, after which the same bytes must be sent again."""
        piece = _piece(buffers, self._offered or PIECE_BYTES_MAX)
        if len(piece) == PIECE_BYTES_MAX:
            self._check_turn()
        return self._write(piece)

    def send_file(self, file: File, position: int, count: int) -> int:
        """Send bytes of a file like `send`; return 0 if the file ends before `position`."""
        self._check_turn()
        sent, count = 0, min(count, FILE_BYTES_MAX)
        while sent < count:
            size = self._offered or min(count - sent, PIECE_BYTES_MAX)
            data = os.pread(file.fileno(), size, position + sent)
            if not data:
                return sent
            try:
                sent += self._write(data)
            except BlockingIOError:
                if not sent:
                    raise
                return sent
        return sent

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback
        if callback is None:
            super().on_writable(None)
        elif self._yielded:
            self._yielded = False
            self._sends.add(self._send_turn)
        else:
            super().on_writable(self._send_in_turn)

    def _send_in_turn(self) -> None:
        super().on_writable(None)
        self._sends.add(self._send_turn)

    def _send_turn(self) -> None:
        callback = self._on_writable
        if callback is not None:
            super().on_writable(self._send_in_turn)
            callback()

    def _check_turn(self) -> None:
        """Raise BlockingIOError if other channels that send much are to be served first."""
        if self._sends.is_over:
            self._yielded = True
            raise BlockingIOError

    def _write(self, data: Bytes) -> int:
        try:
            sent = self._ssl.send(data)
        except ssl.SSLWantWriteError:
            self._offered = len(data)
            raise BlockingIOError from None
        except OSError as error:
            raise _broken(error) from error
        self._offered = 0
        return sent

    # Ending

    def close(self) -> None:
        self._on_readable = self._on_writable = self._on_done = None
        if not self.is_closed and not self._offered:
            with suppress(OSError, ValueError):
                self._ssl.unwrap()  # tells the peer that this is the end; its own answer is not waited for
        super().close()


class TlsStream(Stream):
    """A client's encrypted connection with blocking calls."""

    def __init__(self, host: str, port: int, timeout_s: float, context: ssl.SSLContext) -> None:
        """Connect and complete the handshake. Raises OSError if that fails; ssl.SSLError is one."""
        super().__init__(host, port, timeout_s)
        plain = self._socket
        plain.settimeout(timeout_s)
        try:
            self._ssl = context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
            self._socket = self._ssl
            self._ssl.do_handshake()
        except BaseException:
            plain.close()
            self._socket.close()
            raise

    @property
    def has_received(self) -> bool:
        return self._ssl.fileno() >= 0 and self._ssl.pending() > 0

    def send_all(self, buffers: Iterable[Bytes], timeout_s: float) -> None:
        self._set_timeout(timeout_s)
        unsent = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while unsent:
            piece = _piece(unsent, PIECE_BYTES_MAX)
            self._ssl.sendall(piece)
            sent = len(piece)
            while sent:
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                    break
                sent -= len(unsent.pop(0))

    def receive_all(self, buffer: memoryview, timeout_s: float) -> None:
        self._set_timeout(timeout_s)
        while buffer:
            received = self._ssl.recv_into(buffer)
            if not received:
                raise ConnectionError("the broker closed the connection")
            buffer = buffer[received:]

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            self._ssl.settimeout(max(timeout_s, 1e-6))
            self._timeout_s = timeout_s


def untrusted(error: OSError) -> str | None:
    """Return why a handshake failed if one side did not trust the other, which a retry would not change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message} (see ssl.truststore.location)"
    if isinstance(error, ssl.SSLError) and "ALERT" in str(error.reason):
        return f"the broker refused: {str(error.reason).lower().replace('_', ' ')} (see ssl.keystore.location)"
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL"):
        return "what answers there does not speak TLS (see security.protocol)"
    return None


def secure(channel: Channel, context: ssl.SSLContext, handshakes: Turns, sends: Turns) -> TlsChannel:
    """Return the server's side of a TLS channel on an accepted connection; its handshake has not begun."""

    def wrap(sock: socket.socket) -> ssl.SSLSocket:
        return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    return _wrap(channel, wrap, handshakes, sends)


async def secure_client(channel: Channel, context: ssl.SSLContext, host: str, timeout_s: float) -> TlsChannel:
    """Return the client's side of a TLS channel after its handshake with `host`. Raises OSError or TimeoutError."""
    loop = asyncio.get_running_loop()
    turns = Turns(loop)  # of its own: it waits for nobody

    def wrap(sock: socket.socket) -> ssl.SSLSocket:
        return context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)

    tls = _wrap(channel, wrap, turns, turns)
    done: asyncio.Future[None] = loop.create_future()

    def on_done(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    tls.handshake(on_done)
    try:
        async with asyncio.timeout(timeout_s):
            await done
    except BaseException:
        tls.close()
        raise
    return tls


def _wrap(
    channel: Channel, wrap: Callable[[socket.socket], ssl.SSLSocket], handshakes: Turns, sends: Turns
) -> TlsChannel:
    """Return a TLS channel on the socket of `channel`, which is closed if that fails. Raises OSError."""
    assert isinstance(channel, SocketChannel)
    loop, sock = channel.release()
    try:
        return TlsChannel(loop, wrap(sock), channel.peer, handshakes, sends)
    except BaseException:
        sock.close()
        raise


def _piece(buffers: Sequence[Bytes], size: int) -> Bytes:
    """Return the first `size` bytes of the buffers, or all if they have fewer, copied only if there are several."""
    first = buffers[0]
    if len(first) >= size:
        return memoryview(first)[:size]
    if len(buffers) == 1:
        return first
    parts, missing = [], size
    for buffer in buffers:
        part = memoryview(buffer)[:missing]
        parts.append(part)
        missing -= len(part)
        if not missing:
            break
    return b"".join(parts)


def _broken(error: OSError) -> ConnectionError:
    """Return an error of OpenSSL, or of the system, as that of a connection."""
    return ConnectionError(getattr(error, "reason", None) or error.strerror or str(error))
