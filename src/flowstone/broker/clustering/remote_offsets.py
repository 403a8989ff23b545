"""The start and end offsets of logs that have no replica on this broker, fetched from their leaders, a topic at a time.

They serve a group's lag: its coordinator need not have the partitions that the members read. An answer is cached for a
few seconds. If a leader does not answer, the lag is unknown until the next check, and the leader is not asked before
that.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.client.connection import Address
from flowstone.client.errors import ClientError
from flowstone.client.offsets import CONSUMER_REPLICA_ID, EARLIEST, LATEST
from flowstone.client.peer import Peer
from flowstone.cluster.metadata import Metadata
from flowstone.ports.clock import Clock
from flowstone.ports.network import Network
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
)

ANSWER_HOLDS_S = 5.0
ANSWER_TIMEOUT_S = 2.0


class Bounds(NamedTuple):
    log_start_offset: int
    high_watermark: int


class RemoteOffsets:
    def __init__(self, listener_name: str, metadata: Metadata, clock: Clock, network: Network) -> None:
        """Connect to leaders on demand; `listener_name` names the listener on which brokers reach each other."""
        self._listener_name, self._metadata = listener_name, metadata
        self._clock, self._network = clock, network
        # The answers of leaders by broker and topic, each with the time at which it arrived.
        self._known: dict[tuple[int, str], tuple[float, dict[int, Bounds]]] = {}

    async def bounds(self, where: TopicPartition) -> Bounds | None:
        """Return a partition's start and end offset, or None if it has no leader or its leader does not answer."""
        placed = self._metadata.image.partition(where)
        if placed is None:
            return None
        key, now_s = (placed.leader, where.topic), self._clock.monotonic()
        asked_s, found = self._known.get(key, (-ANSWER_HOLDS_S, {}))
        if now_s - asked_s >= ANSWER_HOLDS_S:
            self._known = {each: known for each, known in self._known.items() if now_s - known[0] < ANSWER_HOLDS_S}
            found = await self._ask(*key)
            self._known[key] = now_s, found
        return found.get(where.partition)

    async def _ask(self, leader_id: int, topic: str) -> dict[int, Bounds]:
        image = self._metadata.image
        endpoint, described = image.endpoint(leader_id, self._listener_name), image.topics.get(topic)
        if endpoint is None or described is None:
            return {}
        led = [index for index, placed in enumerate(described.partitions) if placed.leader == leader_id]
        address = Address(endpoint.host, endpoint.port)
        try:
            peer = await Peer.connect(self._network, self._clock, address, "group-survey", ANSWER_TIMEOUT_S)
            try:
                starts = await peer.ask(_request(topic, led, EARLIEST), ListOffsetsResponse, ANSWER_TIMEOUT_S)
                ends = await peer.ask(_request(topic, led, LATEST), ListOffsetsResponse, ANSWER_TIMEOUT_S)
            finally:
                peer.close()
        except ClientError:
            return {}
        first, last = _offsets(starts), _offsets(ends)
        return {index: Bounds(first[index], last[index]) for index in first.keys() & last.keys()}


def _request(topic: str, partitions: list[int], timestamp: int) -> ListOffsetsRequest:
    wanted = [ListOffsetsRequestPartition(partition_index=index, timestamp=timestamp) for index in partitions]
    return ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID, topics=[ListOffsetsRequestTopic(name=topic, partitions=wanted)]
    )


def _offsets(answer: ListOffsetsResponse) -> dict[int, int]:
    found = (each for topic in answer.topics for each in topic.partitions)
    return {each.partition_index: each.offset for each in found if not each.error_code}
