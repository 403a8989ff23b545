"""The network between the brokers of one process, whose links can be cut.

A cut ends the connections between two brokers and keeps new ones from being made, both ways. Clients are not concerned:
they reach every broker that is there.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Collection
from contextlib import suppress

from flowstone.ports.network import SocketChannel, SystemNetwork


class Links:
    """Who cannot reach whom, for all brokers. Calls may come from any thread."""

    def __init__(self) -> None:
        self._nodes: dict[int, int] = {}  # by port
        self._lock = threading.Lock()
        self._groups: tuple[frozenset[int], ...] = ()
        self._networks: dict[int, CutNetwork] = {}

    def add(self, node_id: int, port: int) -> None:
        """Where a broker listens."""
        self._nodes[port] = node_id

    def network(self, node_id: int) -> CutNetwork:
        """That of a broker that starts, for its running loop."""
        network = CutNetwork(self, node_id)
        with self._lock:
            self._networks[node_id] = network
        return network

    def cut(self, groups: Collection[Collection[int]]) -> None:
        """From now on brokers reach those of their own group; one that is in none reaches all."""
        with self._lock:
            self._groups = tuple(map(frozenset, groups))
            networks = list(self._networks.values())
        for network in networks:
            network.links_changed()

    def is_cut(self, one: int, port: int) -> bool:
        """Between a broker and the one that listens on `port`."""
        other = self._nodes.get(port)
        ours, theirs = (next((group for group in self._groups if each in group), None) for each in (one, other))
        return ours is not None and theirs is not None and ours != theirs


class CutNetwork(SystemNetwork):
    def __init__(self, links: Links, node_id: int) -> None:
        self._links, self._node_id = links, node_id
        self._loop = asyncio.get_running_loop()
        self._channels: list[tuple[int, SocketChannel]] = []  # connected from here, and to which port

    async def connect(self, host: str, port: int, timeout_s: float) -> SocketChannel:
        if self._links.is_cut(self._node_id, port):
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        channel = await super().connect(host, port, timeout_s)
        self._channels = [(to, each) for to, each in self._channels if not each.is_closed]
        self._channels.append((port, channel))
        return channel

    def links_changed(self) -> None:
        with suppress(RuntimeError):  # the broker has ended, and its connections with it
            self._loop.call_soon_threadsafe(self._break_cut)

    def _break_cut(self) -> None:
        for port, channel in self._channels:
            if self._links.is_cut(self._node_id, port):
                channel.break_off()
