"""A TCP proxy to a server that can be shut: a port on loopback whose connections are forwarded while it is open.

Tests use it to cut a broker off from ZooKeeper, whose client has its own sockets. It uses threads, because the two
sides share no event loop, and forwards a few kilobytes per second.
"""

from __future__ import annotations

import socket  # noqa: TID251 - stands between a library's sockets and another program's
import threading
from contextlib import suppress

from flowstone.embedded.settings import HOST

CHUNK_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 5.0


class Gate:
    """A proxy that is open after construction. Any thread may call the methods."""

    def __init__(self, host: str, port: int) -> None:
        """Start a proxy to the server at this address."""
        self._target = host, port
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_open = True
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="flowstone-gate", daemon=True).start()

    def shut(self) -> None:
        """Close all connections, and every new one immediately."""
        with self._lock:
            self._is_open = False
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _end(each)

    def open(self) -> None:
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        self.shut()
        _end(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, CONNECT_TIMEOUT_S)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            with self._lock:
                is_open = self._is_open
                if is_open:
                    self._sockets |= {client, server}
            if not is_open:
                client.close()
                server.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(source, sink), name="flowstone-gate", daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                sink.sendall(data)
        with self._lock:
            self._sockets -= {source, sink}
        _end(source)
        _end(sink)


def _end(each: socket.socket) -> None:
    """Shut a socket down, which wakes threads that wait on it; closing alone does not."""
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
