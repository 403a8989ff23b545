"""The machines' network: byte streams that arrive in order and late, links that are cut, ends that vanish.

While a link is cut nothing arrives that way; what was sent then arrives after it has healed, as TCP would have it. A
process that is killed has its connections reset by its machine; a machine without power says nothing, and resets once
it is back. Turns of the network belong to nobody; what it has for a process it puts in front of it.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from flowstone.ports.files import File
from flowstone.ports.network import Channel as ChannelPort
from flowstone.types import Bytes

from .loop import NEUTRAL, Process, SimulatedLoop

BUFFER_BYTES_MAX = 256 * 1024
DELAY_S_MIN, DELAY_S_MAX = 0.0001, 0.0015
# So much of what is sent meets a queue on its way.
LATE_SHARE, LATE_S_MAX = 0.02, 0.03
# So many of a machine's connections lose what is on its way with the power.
LOST_SHARE = 0.5
FREE_PORT_MIN = 30_000
# What producers of a simulation send as values: only there may bits flip, for all else has no checksum.
_VALUES = re.compile(rb"(?:[a-z][a-z0-9.-]*/\d+/){2,}")


class Link:
    """One direction between two machines."""

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self._loop, self._random = loop, random
        self._held: deque[Callable[[], None]] = deque()
        self._arrives_at = 0.0
        self.is_cut = False
        self.flips = 0  # of so many values a bit is still to be flipped

    def carry(self, arrive: Callable[..., None], *args: object) -> None:
        delay_s = self._random.uniform(DELAY_S_MIN, DELAY_S_MAX)
        if self._random.random() < LATE_SHARE:
            delay_s += self._random.uniform(0, LATE_S_MAX)
        self._arrives_at = max(self._arrives_at, self._loop.time() + delay_s)
        self._loop.call_at(self._arrives_at, self._arrive, lambda: arrive(*args), context=NEUTRAL)

    def heal(self) -> None:
        self.is_cut = False
        while self._held:
            self.carry(self._held.popleft())

    def _arrive(self, arrive: Callable[[], None]) -> None:
        if self.is_cut or self._held:
            self._held.append(arrive)
        else:
            arrive()

    def spoil(self, data: bytes) -> bytes:
        """Flips a bit of a value, if one is to be flipped and there is one."""
        found = _VALUES.search(data) if self.flips else None
        if found is None:
            return data
        self.flips -= 1
        spoiled = bytearray(data)
        spoiled[self._random.randrange(*found.span())] ^= 1 << self._random.randrange(8)
        return bytes(spoiled)


class Channel:
    def __init__(self, network: SimulatedNetwork, process: Process, host: str, link: Link, peer: str) -> None:
        """`link` leads to the other end."""
        self.peer, self.process, self.host = peer, process, host
        self.other: Channel
        self._network, self._link = network, link
        self._received = bytearray()
        self._unread_bytes = 0  # sent, and not yet read by the other end
        self.is_closed = self._is_ended = self._is_reset = self._is_told = False
        # What is on its way does not arrive: it was aborted, or its machine lost its power before it left.
        self.is_lost = False
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None

    # What its process calls

    def receive_into(self, buffer: memoryview) -> int:
        if self._is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if not self._received:
            if self._is_ended or self.is_closed:
                return 0
            raise BlockingIOError
        count = min(len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        del self._received[:count]
        self._link.carry(self.other._taken, count)
        return count

    def send(self, buffers: Sequence[Bytes], *, more: bool = False) -> int:
        if self._is_reset or self.is_closed:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        space = BUFFER_BYTES_MAX - self._unread_bytes
        if space <= 0:
            raise BlockingIOError
        data = b"".join(buffers)[:space]
        if data:
            self._unread_bytes += len(data)
            self._link.carry(self.other._arrived, self._link.spoil(data))
        return len(data)

    def send_file(self, file: File, position: int, count: int) -> int:
        data = file.read(position, count)
        return self.send([data]) if data else 0

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._readable = callback
        self._tell()

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._writable = callback
        if callback is not None and self._unread_bytes < BUFFER_BYTES_MAX:
            self.process.post(self._ready_to_write)

    def close(self) -> None:
        if not self.is_closed:
            self.vanish()
            self._link.carry(self.other._ended)

    def abort(self) -> None:
        """What is on its way does not arrive any more."""
        if not self.is_closed:
            self.is_lost = True
            self.vanish()
            self._link.carry(self.other.reset)

    # What the network does

    def vanish(self) -> None:
        """Closes silently."""
        self.is_closed = True
        self._readable = self._writable = None
        self._network.forget(self)

    def reset(self) -> None:
        self._is_reset = self._is_ended = True
        self._tell()
        if self._writable is not None:
            self.process.post(self._ready_to_write)

    def _arrived(self, data: bytes) -> None:
        if self.other.is_lost:
            return
        if not self.is_closed:
            self._network.note(data)
            self._received += data
            self._tell()
        elif self._network.is_up(self.host):
            self._link.carry(self.other.reset)

    def _taken(self, count: int) -> None:
        self._unread_bytes -= count
        if self._writable is not None:
            self.process.post(self._ready_to_write)

    def _ended(self) -> None:
        self._is_ended = True
        self._tell()

    def _tell(self) -> None:
        if self._readable is not None and not self._is_told and (self._received or self._is_ended):
            self._is_told = True
            self.process.post(self._ready_to_read)

    def _ready_to_read(self) -> None:
        self._is_told = False
        if self._readable is not None:
            self._readable()
            if self._received:
                self._tell()

    def _ready_to_write(self) -> None:
        if self._writable is not None:
            self._writable()


class Listener:
    def __init__(
        self, network: SimulatedNetwork, process: Process, address: tuple[str, int], accept: Callable[..., None]
    ) -> None:
        self._network, self.process, self.address, self._accept = network, process, address, accept
        self._waiting: list[ChannelPort] | None = []  # until it starts

    @property
    def port(self) -> int:
        return self.address[1]

    def start(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for channel in waiting:
            self._accept(channel)

    def close(self) -> None:
        self._network.listeners.pop(self.address, None)

    def connected(self, channel: Channel) -> None:
        if self._waiting is not None:
            self._waiting.append(channel)
        else:
            self.process.post(self._accept, channel)


class SimulatedNetwork:
    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self._loop, self._random = loop, random
        self.listeners: dict[tuple[str, int], Listener] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._channels: dict[Channel, None] = {}
        self._down: set[str] = set()
        self._next_port = FREE_PORT_MIN
        self.note = loop.note

    def host(self, name: str, process: Process) -> Host:
        return Host(self, name, process)

    def link(self, sender: str, receiver: str) -> Link:
        if (sender, receiver) not in self._links:
            self._links[sender, receiver] = Link(self._loop, self._random)
        return self._links[sender, receiver]

    def heal(self) -> None:
        for link in self._links.values():
            link.heal()

    def is_up(self, host: str) -> bool:
        return host not in self._down

    def power_up(self, host: str) -> None:
        self._down.discard(host)

    def end(self, process: Process, host: str, *, loses_power: bool) -> None:
        """The process is gone; its machine says so, unless it has no power."""
        if loses_power:
            self._down.add(host)
        for listener in [each for each in self.listeners.values() if each.process is process]:
            listener.close()
        for channel in [each for each in self._channels if each.process is process]:
            channel.vanish()
            if loses_power:
                channel.is_lost = self._random.random() < LOST_SHARE
            else:
                channel._link.carry(channel.other.reset)

    def forget(self, channel: Channel) -> None:
        self._channels.pop(channel, None)

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def pair(self, process: Process, host: str, listener: Listener) -> tuple[Channel, Channel]:
        other, port = listener.address
        ours = Channel(self, process, host, self.link(host, other), f"{other}:{port}")
        theirs = Channel(self, listener.process, other, self.link(other, host), f"{host}:{self.free_port()}")
        ours.other, theirs.other = theirs, ours
        self._channels[ours] = self._channels[theirs] = None
        return ours, theirs


class Host:
    """The network as a process on one machine sees it."""

    def __init__(self, network: SimulatedNetwork, name: str, process: Process) -> None:
        self._network, self.name, self._process = network, name, process

    def bind(
        self, host: str, port: int, accept: Callable[[ChannelPort], None], *, send_buffer_bytes: int = -1
    ) -> Listener:
        address = (self.name, port or self._network.free_port())
        if address in self._network.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = self._network.listeners[address] = Listener(self._network, self._process, address, accept)
        return listener

    async def connect(self, host: str, port: int, timeout_s: float) -> Channel:
        connected: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        self._network.link(self.name, host).carry(self._knock, host, port, connected)
        async with asyncio.timeout(timeout_s):
            return await connected

    def _knock(self, host: str, port: int, connected: asyncio.Future[Channel]) -> None:
        """At the other machine."""
        network, back = self._network, self._network.link(host, self.name)
        listener = network.listeners.get((host, port))
        if listener is not None:
            ours, theirs = network.pair(self._process, self.name, listener)
            listener.connected(theirs)
            back.carry(self._process.post, _settle, connected, ours)
        elif network.is_up(host):
            back.carry(self._process.post, _refuse, connected)


def _settle(connected: asyncio.Future[Channel], channel: Channel) -> None:
    if connected.done():
        channel.close()
    else:
        connected.set_result(channel)


def _refuse(connected: asyncio.Future[Channel]) -> None:
    if not connected.done():
        connected.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
