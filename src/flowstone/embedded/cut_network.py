"""The network between the brokers of one process, with links that can be cut.

A cut closes the connections between two brokers and prevents new ones, in both directions. Clients are not affected:
they reach every running broker.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Collection
from contextlib import suppress

from flowstone.ports.network import SocketChannel, SystemNetwork


class Links:
    """The links between all brokers and which of them are cut. Any thread may call the methods."""

    def __init__(self) -> None:
        self._nodes: dict[int, int] = {}  # by port
        self._lock = threading.Lock()
        self._groups: tuple[frozenset[int], ...] = ()
        self._networks: dict[int, CutNetwork] = {}

    def add(self, node_id: int, port: int) -> None:
        """Register the port on which a broker listens."""
        self._nodes[port] = node_id

    def network(self, node_id: int) -> CutNetwork:
        """Return the network of a starting broker, for its running event loop."""
        network = CutNetwork(self, node_id)
        with self._lock:
            self._networks[node_id] = network
        return network

    def cut(self, groups: Collection[Collection[int]]) -> None:
        """Cut all links between different groups of brokers; a broker in no group reaches all."""
        with self._lock:
            self._groups = tuple(map(frozenset, groups))
            networks = list(self._networks.values())
        for network in networks:
            network.links_changed()

    def is_cut(self, one: int, port: int) -> bool:
        """Return whether the link between a broker and the one that listens on `port` is cut."""
        other = self._nodes.get(port)
        ours, theirs = (next((group for group in self._groups if each in group), None) for each in (one, other))
        return ours is not None and theirs is not None and ours != theirs


class CutNetwork(SystemNetwork):
    def __init__(self, links: Links, node_id: int) -> None:
        self._links, self._node_id = links, node_id
        self._loop = asyncio.get_running_loop()
        self._channels: list[tuple[int, SocketChannel]] = []  # outgoing connections, with the port of each

    async def connect(self, host: str, port: int, timeout_s: float) -> SocketChannel:
        if self._links.is_cut(self._node_id, port):
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        channel = await super().connect(host, port, timeout_s)
        self._channels = [(to, each) for to, each in self._channels if not each.is_closed]
        self._channels.append((port, channel))
        return channel

    def links_changed(self) -> None:
        with suppress(RuntimeError):  # the broker has ended, and so have its connections
            self._loop.call_soon_threadsafe(self._break_cut)

    def _break_cut(self) -> None:
        for port, channel in self._channels:
            if self._links.is_cut(self._node_id, port):
                channel.break_off()
