"""What the clients of a simulation share: connections to brokers, who leads what, and how long to wait for an answer.

Answers and their absence are told as they are: `Unanswered` is an outcome that nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TypeVar

from flowstone.client.connection import Address
from flowstone.client.errors import ClientError
from flowstone.client.peer import VERSIONS_MIN, Peer
from flowstone.client.wire_session import VersionRange
from flowstone.errors import ErrorCode
from flowstone.ports.clock import Clock
from flowstone.ports.network import Network
from flowstone.types import TopicPartition
from flowstone.wire.apis import Api
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

Response = TypeVar("Response", bound=Message)

ANSWER_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 1.0
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 0.25
CLIENT_ID = "simulated"
GROUP, TRANSACTION = 0, 1  # the kinds of coordinators


class Unanswered(Exception):
    """No answer came, or nobody is known to ask: what became of the request is unknown."""


class Client:
    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: Random,
        bootstrap: list[Address],
        versions: Mapping[type[Message], int] | None = None,
    ) -> None:
        """`versions` has the highest versions that the client knows, where these are not the newest."""
        self.clock, self.random = clock, random
        self._network, self._bootstrap = network, bootstrap
        self._versions = versions or {}
        self._peers: dict[Address, _Peer] = {}
        self._addresses: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._leader_epochs: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self.topic_ids: dict[str, bytes] = {}

    async def ask(self, address: Address, request: Message, kind: type[Response]) -> Response:
        return await self.ask_over(await self._connection(address), request, kind)

    async def ask_over(self, peer: Peer, request: Message, kind: type[Response]) -> Response:
        """Over this connection or none: what is asked in order arrives in order."""
        try:
            return await peer.ask(request, kind, ANSWER_TIMEOUT_S)
        except ClientError as error:
            raise Unanswered(str(error)) from error

    async def _connection(self, address: Address) -> _Peer:
        peer = self._peers.get(address)
        if peer is None or not peer.is_open:
            try:
                peer = await _Peer.connect(self._network, self.clock, address, CLIENT_ID, CONNECT_TIMEOUT_S)
            except ClientError as error:
                raise Unanswered(str(error)) from error
            peer.know_up_to(self._versions)
            self._peers[address] = peer
        return peer

    async def ask_any(self, request: Message, kind: type[Response]) -> Response:
        return await self.ask(self.random.choice(self._bootstrap), request, kind)

    async def ask_leader(self, partition: TopicPartition, request: Message, kind: type[Response]) -> Response:
        leader = await self.leader(partition)
        try:
            return await self.ask_over(leader, request, kind)
        except Unanswered:
            self.forget_leader(partition)
            raise

    async def leader(self, partition: TopicPartition) -> Peer:
        """A connection to the leader as far as known; whoever hears that it is another calls `forget_leader`."""
        try:
            if partition not in self._leaders or partition.topic not in self.topic_ids:
                await self.learn(partition.topic)
            address = self._addresses.get(self._leaders.get(partition, -1))
            if address is None:
                raise Unanswered(f"{partition} has no leader")
            return await self._connection(address)
        except Unanswered:
            self.forget_leader(partition)
            raise

    async def ask_node(self, node_id: int, request: Message, kind: type[Response]) -> Response:
        if node_id not in self._addresses:
            raise Unanswered(f"nobody knows where b{node_id} is")
        return await self.ask(self._addresses[node_id], request, kind)

    def forget_leader(self, partition: TopicPartition) -> None:
        self._leaders.pop(partition, None)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """The newest that it has heard of; -1 if none."""
        return self._leader_epochs.get(partition, -1)

    async def learn(self, topic: str) -> MetadataResponse:
        """Who leads the topic's partitions, as one of the brokers tells."""
        answer = await self.ask_any(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), MetadataResponse)
        self._addresses = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        for found in answer.topics:
            if found.error_code == ErrorCode.NONE and found.name is not None:
                self.topic_ids[found.name] = found.topic_id
                for each in found.partitions:
                    partition = TopicPartition(found.name, each.partition_index)
                    if each.leader_epoch >= self.leader_epoch(partition):  # else whoever tells has lost touch
                        self._leaders[partition] = each.leader_id
                        self._leader_epochs[partition] = each.leader_epoch
        if topic not in self.topic_ids:
            raise Unanswered(f"nobody knows of {topic}")
        return answer

    async def ask_coordinator(
        self, key: str, request: Message, kind: type[Response], key_type: int = GROUP
    ) -> Response:
        if (key_type, key) not in self._coordinators:
            wanted = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            found = (await self.ask_any(wanted, FindCoordinatorResponse)).coordinators[0]
            if found.error_code:
                raise Unanswered(f"{key} has no coordinator: {ErrorCode(found.error_code).name}")
            self._coordinators[key_type, key] = Address(found.host, found.port)
        try:
            return await self.ask(self._coordinators[key_type, key], request, kind)
        except Unanswered:
            self.forget_coordinator(key, key_type)
            raise

    def forget_coordinator(self, key: str, key_type: int = GROUP) -> None:
        self._coordinators.pop((key_type, key), None)

    async def back_off(self) -> None:
        await self.clock.sleep(self.random.uniform(BACKOFF_S_MIN, BACKOFF_S_MAX))

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


class _Peer(Peer):
    """A connection whose client may know less than brokers do."""

    def know_up_to(self, versions: Mapping[type[Message], int]) -> None:
        """Ask for no version above these. Called before the first request."""

        def known_versions(api: Api) -> VersionRange:
            return VERSIONS_MIN.get(api.request, api.min_version), versions.get(api.request, api.max_version)

        self._session._known_versions = known_versions
