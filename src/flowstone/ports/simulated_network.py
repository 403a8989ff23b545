"""A network in memory: named hosts, byte streams between them, links that can be slow or cut.

A `SimulatedNetwork` is one network; `host(name)` is a machine on it, which binds and connects like a `Network`.
Connections use the target host's name and port. A stream has a bounded buffer per direction. Data arrives in order,
after the delay that the hook returns. While the link from one host to another is cut, nothing arrives in that
direction, not even the end of a stream; when it is restored, everything arrives, as with TCP. Connecting needs both
directions.

The simulation is deterministic: nothing depends on randomness, the machine's time or the order of a set.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence

from flowstone.ports.clock import Clock
from flowstone.ports.files import File
from flowstone.ports.network import Accept
from flowstone.types import Bytes

BUFFER_BYTES_MAX = 256 * 1024
# The first port for port 0; connecting sides get ports from the same sequence.
FREE_PORT_MIN = 30_000

# (sender host, receiver host, number of bytes) -> delay in seconds.
Delay = Callable[[str, str, int], float]
_END = b""


class SimulatedChannel:
    def __init__(self, peer: str, link: Link | None = None) -> None:
        """Create a channel to `peer`; without `link`, the direction to the peer, data arrives immediately."""
        self.peer = peer
        self.other: SimulatedChannel
        self.capacity_bytes = BUFFER_BYTES_MAX
        self._link = link
        self._under_way_bytes = 0
        self._received = bytearray()
        self._closed = self._ended = self._aborted = False
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None

    def receive_into(self, buffer: memoryview) -> int:
        if not self._received:
            if self._closed or self._ended:
                return 0
            raise BlockingIOError
        count = min(len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        del self._received[:count]
        self.other._wake_writer()
        return count

    def send(self, buffers: Sequence[Bytes], *, more: bool = False) -> int:
        if self._closed or self._ended:
            raise BrokenPipeError
        free_bytes = self._free_bytes
        if free_bytes <= 0:
            raise BlockingIOError
        data = b"".join(bytes(buffer) for buffer in buffers)[:free_bytes]
        if data:
            self._carry(data)
        return len(data)

    def send_file(self, file: File, position: int, count: int) -> int:
        data = file.read(position, count)
        return self.send([data]) if data else 0

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._readable = callback
        if self._received or self._ended:
            self._wake_reader()

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._writable = callback
        self._wake_writer()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._readable = self._writable = None
        self._carry(_END)

    def abort(self) -> None:
        self._aborted = True
        self.close()

    def arrive(self, data: bytes) -> None:
        """Receive data from the peer; empty data is the end of its stream."""
        self.other._under_way_bytes -= len(data)
        if self._closed or (data and self.other._aborted):
            return
        if data:
            self._received += data
        else:
            self._ended = True
        self._wake_reader()

    @property
    def _free_bytes(self) -> int:
        return self.other.capacity_bytes - len(self.other._received) - self._under_way_bytes

    def _carry(self, data: bytes) -> None:
        self._under_way_bytes += len(data)
        if self._link is None:
            self.other.arrive(data)
        else:
            self._link.carry(self.other, data)

    def _wake_reader(self) -> None:
        if self._readable is not None:
            asyncio.get_running_loop().call_soon(self._ready_to_read)

    def _ready_to_read(self) -> None:
        """Call the owner while there is data to read: readiness is level-triggered."""
        if self._readable is not None and (self._received or self._ended):
            self._readable()
            if self._received:
                self._wake_reader()

    def _wake_writer(self) -> None:
        if self._writable is not None and self._free_bytes > 0:
            asyncio.get_running_loop().call_soon(self._ready_to_write)

    def _ready_to_write(self) -> None:
        if self._writable is not None:
            self._writable()


def channel_pair() -> tuple[SimulatedChannel, SimulatedChannel]:
    ours, theirs = SimulatedChannel("simulated:1"), SimulatedChannel("simulated:2")
    ours.other, theirs.other = theirs, ours
    return ours, theirs


class Link:
    """One direction between two hosts. Data arrives in the order in which it was sent, across all streams."""

    def __init__(self, network: SimulatedNetwork, sender: str, receiver: str) -> None:
        self._network, self._sender, self._receiver = network, sender, receiver
        self._under_way: deque[tuple[Callable[[bytes], None], bytes]] = deque()
        self._due_count = 0
        self._arrives_at = 0.0
        self._is_cut = False

    def carry(self, channel: SimulatedChannel, data: bytes) -> None:
        self.deliver(channel.arrive, data)

    def deliver(self, arrive: Callable[[bytes], None], data: bytes) -> None:
        """Call `arrive` with the data after the link's delay."""
        network = self._network
        now = network.clock.monotonic()
        delay_s = network.delay(self._sender, self._receiver, len(data)) if network.delay is not None else 0.0
        self._arrives_at = max(self._arrives_at, now + delay_s)
        self._under_way.append((arrive, data))
        if self._arrives_at > now:
            network.clock.call_later(self._arrives_at - now, self._due)
        else:
            self._due()

    def cut(self, is_cut: bool) -> None:
        self._is_cut = is_cut
        self._arrive()

    def _due(self) -> None:
        self._due_count += 1
        self._arrive()

    def _arrive(self) -> None:
        while self._due_count and not self._is_cut:
            self._due_count -= 1
            arrive, data = self._under_way.popleft()
            arrive(data)


class SimulatedNetwork:
    def __init__(self, clock: Clock, delay: Delay | None = None) -> None:
        self.clock, self.delay = clock, delay
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._next_port = FREE_PORT_MIN

    def host(self, name: str) -> SimulatedHost:
        return SimulatedHost(self, name)

    def cut(self, sender: str, receiver: str) -> None:
        """Cut the link from `sender` to `receiver`; the opposite direction is not affected."""
        self.link(sender, receiver).cut(True)

    def separate(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Cut every link between two sets of hosts, in both directions."""
        for one in some:
            for other in others:
                self.cut(one, other)
                self.cut(other, one)

    def heal(self) -> None:
        for link in self._links.values():
            link.cut(False)

    def link(self, sender: str, receiver: str) -> Link:
        link = self._links.get((sender, receiver))
        if link is None:
            link = self._links[sender, receiver] = Link(self, sender, receiver)
        return link

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def add(self, listener: SimulatedListener) -> None:
        if (listener.host, listener.port) in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._listeners[listener.host, listener.port] = listener

    def remove(self, listener: SimulatedListener) -> None:
        self._listeners.pop((listener.host, listener.port), None)

    def find(self, host: str, port: int) -> SimulatedListener | None:
        return self._listeners.get((host, port))


class SimulatedListener:
    def __init__(self, network: SimulatedNetwork, host: str, port: int, accept: Accept) -> None:
        self._network, self.host, self.port, self._accept = network, host, port, accept
        self._waiting: deque[SimulatedChannel] | None = deque()  # until it starts

    def start(self) -> None:
        waiting, self._waiting = self._waiting or deque(), None
        for channel in waiting:
            self._accept(channel)

    def rest(self, duration_s: float) -> None:
        """Do nothing: simulated clients do not make connections that fast."""

    def close(self) -> None:
        self._network.remove(self)
        for channel in self._waiting or ():
            channel.close()
        self._waiting = deque()

    def connected(self, channel: SimulatedChannel) -> None:
        if self._waiting is None:
            self._accept(channel)
        else:
            self._waiting.append(channel)


class SimulatedHost:
    """A machine on the network, as its broker uses it."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.network, self.name = network, name

    def bind(self, host: str, port: int, accept: Accept, *, send_buffer_bytes: int = -1) -> SimulatedListener:
        """Bind a port of this machine, whatever `host` says."""
        listener = SimulatedListener(self.network, self.name, port or self.network.free_port(), accept)
        self.network.add(listener)
        return listener

    async def connect(self, host: str, port: int, timeout_s: float) -> SimulatedChannel:
        there, back = self.network.link(self.name, host), self.network.link(host, self.name)
        answered: asyncio.Future[SimulatedChannel] = asyncio.get_running_loop().create_future()

        def arrive(_: bytes) -> None:
            listener = self.network.find(host, port)
            if listener is None or answered.done():
                back.deliver(refuse, b"")
                return
            ours = SimulatedChannel(f"{host}:{port}", there)
            theirs = SimulatedChannel(f"{self.name}:{self.network.free_port()}", back)
            ours.other, theirs.other = theirs, ours
            back.deliver(lambda _: settle(ours), b"")
            listener.connected(theirs)

        def settle(channel: SimulatedChannel) -> None:
            if answered.done():
                channel.close()
            else:
                answered.set_result(channel)

        def refuse(_: bytes) -> None:
            if not answered.done():
                answered.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))

        def time_out() -> None:
            if not answered.done():
                answered.set_exception(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

        timer = self.network.clock.call_later(timeout_s, time_out)
        there.deliver(arrive, b"")
        try:
            return await answered
        finally:
            timer.cancel()
