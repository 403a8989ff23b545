"""Where logs begin and end of which this broker has no replica: their leaders are asked, a topic at a time.

For a group's lag: its coordinator need not have what its members read. An answer holds for a few seconds. A leader that
does not answer leaves the lag unknown, and is not asked again before the next look.
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


class Elsewhere:
    def __init__(self, listener_name: str, metadata: Metadata, clock: Clock, network: Network) -> None:
        """`listener_name`: on which of their listeners brokers reach each other."""
        self._listener_name, self._metadata = listener_name, metadata
        self._clock, self._network = clock, network
        # What a leader said of the partitions of a topic, and when.
        self._known: dict[tuple[int, str], tuple[float, dict[int, Bounds]]] = {}

    async def bounds(self, where: TopicPartition) -> Bounds | None:
        """None if the partition has no leader, or its leader does not answer."""
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
