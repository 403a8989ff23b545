"""The connections of a share consumer: to any broker for metadata, to the coordinator of its group, to leaders.

A connection serves one purpose, because a broker answers the requests of a connection in order, and a fetch may wait.
A connection that failed is made again by the next request.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.client.brokers import parse_bootstrap
from flowstone.client.connection import CONNECT_TIMEOUT_S, Address
from flowstone.client.coordinators import CoordinatorKind
from flowstone.client.errors import Disconnected, LeaderMoved, Retriable, UnknownTopic, refusal
from flowstone.client.peer import Peer, secured
from flowstone.client.security import ClientSecurity, security_of
from flowstone.client.wire_session import Response
from flowstone.errors import ErrorCode
from flowstone.ports.clock import SystemClock
from flowstone.ports.network import SystemNetwork
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

REQUEST_TIMEOUT_S = 30.0
METADATA, COORDINATOR, LEADER = "metadata", "coordinator", "leader"


class TopicLeaders(NamedTuple):
    """A topic: its id, and the addresses of its partitions' leaders, None while one has none."""

    topic_id: bytes
    leaders: tuple[Address | None, ...]


class Connections:
    def __init__(self, bootstrap: str, client_id: str, security: ClientSecurity | None = None) -> None:
        """Create the set without connecting. Raises BadAddress if `bootstrap` is not a list of HOST:PORT."""
        self._bootstrap, self._client_id = parse_bootstrap(bootstrap), client_id
        self._network = secured(SystemNetwork(), security or security_of(bootstrap))
        self._clock = SystemClock()
        self._known: tuple[Address, ...] = ()
        self._peers: dict[tuple[str, Address], Peer] = {}

    async def ask(
        self,
        purpose: str,
        address: Address,
        request: Message,
        kind: type[Response],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Response:
        """Return the broker's response. Raises Retriable if there is none, BadAnswer if its release is too old."""
        peer = self._peers.get((purpose, address))
        if peer is None or not peer.is_open:
            peer = await Peer.connect(
                self._network, self._clock, address, self._client_id, min(timeout_s, CONNECT_TIMEOUT_S)
            )
            self._peers[purpose, address] = peer
        return await peer.ask(request, kind, timeout_s)

    async def ask_any(self, request: Message, kind: type[Response]) -> Response:
        """Return the answer of the first broker that gives one. Raises Disconnected if none does."""
        failures: list[Disconnected] = []
        for address in dict.fromkeys((*self._known, *self._bootstrap)):
            try:
                return await self.ask(METADATA, address, request, kind, CONNECT_TIMEOUT_S)
            except Disconnected as error:
                failures.append(error)
        raise Disconnected("; ".join(dict.fromkeys(map(str, failures)))) from failures[-1]

    def drop(self, purpose: str, address: Address) -> None:
        """Close a connection, so that the broker ends what is bound to it."""
        peer = self._peers.pop((purpose, address), None)
        if peer is not None:
            peer.close()

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    async def leaders(self, topic: str) -> TopicLeaders:
        """Return the leaders of a topic's partitions. Raises UnknownTopic, or another Retriable."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer = await self.ask_any(request, MetadataResponse)
        nodes = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        self._known = tuple(nodes.values())
        for found in answer.topics:
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopic(f"there is no topic {topic}: check the name, or create it first")
            if found.error_code:
                raise refusal(found.error_code, f"topic {topic}")
            leaders = {each.partition_index: nodes.get(each.leader_id) for each in found.partitions}
            return TopicLeaders(found.topic_id, tuple(leaders.get(index) for index in range(len(leaders))))
        raise Retriable(f"the answer does not name topic {topic}")

    async def coordinator(self, group: str) -> Address:
        """Return the address of the group's coordinator. Raises Retriable while there is none."""
        request = FindCoordinatorRequest(key_type=CoordinatorKind.GROUP, coordinator_keys=[group])
        for found in (await self.ask_any(request, FindCoordinatorResponse)).coordinators:
            if found.error_code:
                raise refusal(found.error_code, f"group {group}", found.error_message)
            return Address(found.host, found.port)
        raise LeaderMoved(f"nobody coordinates group {group} for now")
