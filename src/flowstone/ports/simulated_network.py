"""Channels in memory: two ends of one byte stream, with a bounded buffer each way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from flowstone.ports.files import File
from flowstone.types import Bytes

BUFFER_BYTES_MAX = 256 * 1024


class SimulatedChannel:
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.other: SimulatedChannel
        self.capacity_bytes = BUFFER_BYTES_MAX
        self._received = bytearray()
        self._closed = False
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None

    def receive_into(self, buffer: memoryview) -> int:
        if not self._received:
            if self._closed or self.other._closed:
                return 0
            raise BlockingIOError
        count = min(len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        del self._received[:count]
        self.other._wake_writer()
        return count

    def send(self, buffers: Sequence[Bytes], *, more: bool = False) -> int:
        if self._closed or self.other._closed:
            raise BrokenPipeError
        room = self.other.capacity_bytes - len(self.other._received)
        if room <= 0:
            raise BlockingIOError
        data = b"".join(bytes(buffer) for buffer in buffers)[:room]
        self.other._received += data
        self.other._wake_reader()
        return len(data)

    def send_file(self, file: File, position: int, count: int) -> int:
        data = file.read(position, count)
        return self.send([data]) if data else 0

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._readable = callback
        if self._received or self.other._closed:
            self._wake_reader()

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._writable = callback
        self._wake_writer()

    def close(self) -> None:
        self._closed = True
        self._readable = self._writable = None
        self.other._wake_reader()

    def _wake_reader(self) -> None:
        if self._readable is not None:
            asyncio.get_running_loop().call_soon(self._ready_to_read)

    def _ready_to_read(self) -> None:
        """Readiness is level-triggered: as long as there is something to read, the owner is called again."""
        if self._readable is not None and (self._received or self.other._closed):
            self._readable()
            if self._received:
                self._wake_reader()

    def _wake_writer(self) -> None:
        if self._writable is not None and len(self.other._received) < self.other.capacity_bytes:
            asyncio.get_running_loop().call_soon(self._ready_to_write)

    def _ready_to_write(self) -> None:
        if self._writable is not None:
            self._writable()


def channel_pair() -> tuple[SimulatedChannel, SimulatedChannel]:
    ours, theirs = SimulatedChannel("simulated:1"), SimulatedChannel("simulated:2")
    ours.other, theirs.other = theirs, ours
    return ours, theirs
