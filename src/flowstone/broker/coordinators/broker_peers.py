"""Connections to the other brokers of the cluster for the requests of coordinators, one connection per broker.

A connection is made when it is first needed, and again after it has failed. Callers retry failed requests themselves.
Requests to one broker share its connection, which answers in order.

A connection ends with the life of its broker: when the metadata says that the broker is fenced, gone or registered
anew, all requests to it fail at once. A broker that is paused, cut off or about to stop would answer them late or
never, and others do its work by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowstone.client.errors import Disconnected
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.metadata import Metadata
from flowstone.ports.clock import Clock
from flowstone.ports.network import Network
from flowstone.wire.message import Message

if TYPE_CHECKING:
    from flowstone.client.connection import Address
    from flowstone.client.peer import Peer
    from flowstone.client.wire_session import Response

CONNECT_TIMEOUT_S = 5.0
CLIENT_ID = "transaction-coordinator"


class BrokerPeers:
    def __init__(self, listener_name: str, metadata: Metadata, clock: Clock, network: Network) -> None:
        """Create the set without any connection; `listener_name` is the listener on which brokers reach each other."""
        self._listener_name, self._metadata = listener_name, metadata
        self._clock, self._network = clock, network
        self._connections: dict[int, tuple[Address, asyncio.Task[Peer]]] = {}
        metadata.on_change(self._follow)

    async def ask(self, node_id: int, request: Message, kind: type[Response], timeout_s: float) -> Response:
        """Return the broker's response. Raises ClientError if there is none in time."""
        connecting = self._connection(node_id)
        await asyncio.wait((connecting,))
        if connecting.cancelled():
            raise Disconnected(f"the connection to broker {node_id} was given up")
        return await connecting.result().ask(request, kind, timeout_s)

    def _follow(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        """Close the connections to brokers whose life is over, by what the metadata says."""
        for node_id in tuple(self._connections) if before.brokers is not after.brokers else ():
            known, broker = before.brokers.get(node_id), after.brokers.get(node_id)
            if broker is None or broker.is_fenced or (known is not None and known.epoch != broker.epoch):
                _discard(self._connections.pop(node_id)[1])

    def close(self) -> None:
        for _, connecting in self._connections.values():
            _discard(connecting)
        self._connections.clear()

    def _connection(self, node_id: int) -> asyncio.Task[Peer]:
        from flowstone.client.connection import Address  # a broker that is alone has no use for them
        from flowstone.client.peer import Peer

        endpoint = self._metadata.image.endpoint(node_id, self._listener_name)
        if endpoint is None:
            raise Disconnected(f"broker {node_id} has no address on the listener {self._listener_name}")
        address = Address(endpoint.host, endpoint.port)
        known = self._connections.get(node_id)
        if known is not None:
            if known[0] == address and _is_usable(known[1]):
                return known[1]
            _discard(known[1])
        connecting = asyncio.ensure_future(
            Peer.connect(self._network, self._clock, address, CLIENT_ID, CONNECT_TIMEOUT_S)
        )
        self._connections[node_id] = address, connecting
        return connecting


def _is_usable(connecting: asyncio.Task[Peer]) -> bool:
    if not connecting.done():
        return True
    return not connecting.cancelled() and connecting.exception() is None and connecting.result().is_open


def _discard(connecting: asyncio.Task[Peer]) -> None:
    if not connecting.done():
        connecting.cancel()
    elif not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
