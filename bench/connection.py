"""One blocking connection to a broker with minimal cost in Python and a timeout for every wait.

The load program shares two cores with the measured broker. A request is therefore one `sendmsg` of a header and a
shared batch, and responses are received into one reused buffer. Knows frames, but not their contents.
"""

from __future__ import annotations

import socket
from struct import pack, unpack_from
from types import TracebackType
from typing import Self

from bench import wire

IO_TIMEOUT_SECONDS = 30
BUFFER_BYTES = 64 << 10
RESPONSE_BYTES_MAX = 32 << 20


class Connection:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), timeout=IO_TIMEOUT_SECONDS)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's own timeouts: Python's would make the socket non-blocking and cost a poll for every call.
        self._sock.settimeout(None)
        limit = pack("ll", IO_TIMEOUT_SECONDS, 0)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.buffer = bytearray(BUFFER_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, *parts: bytes | bytearray) -> None:
        sent = self._sock.sendmsg(parts)
        if sent != sum(map(len, parts)):  # cut short by the timeout
            raise TimeoutError("the broker took only a part of a request")

    def receive_some(self, view: memoryview) -> int:
        """Receive available bytes, at least one."""
        got = self._sock.recv_into(view)
        if not got:
            raise ConnectionError("the broker closed the connection")
        return got

    def receive_response(self) -> int:
        """Receive one response into `buffer`; return its length without the size field."""
        self._receive_exactly(4)
        (size,) = unpack_from(">i", self.buffer)
        if not 0 < size <= RESPONSE_BYTES_MAX:
            raise wire.UnexpectedResponse(f"a response claims to be {size} bytes long")
        if size > len(self.buffer):
            self.buffer = bytearray(size)
        self._receive_exactly(size)
        return int(size)

    def ask(self, request: bytes) -> bytes:
        """Send one request and return its response, for requests that are not measured."""
        self.send(request)
        size = self.receive_response()
        return bytes(self.buffer[:size])

    def _receive_exactly(self, count: int) -> None:
        got = self._sock.recv_into(self.buffer, count, socket.MSG_WAITALL)
        if not got:
            raise ConnectionError("the broker closed the connection")
        if got != count:
            raise TimeoutError(f"only {got} of {count} bytes of a response came")
