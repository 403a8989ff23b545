"""An operator who moves partitions and leaders about while everything else happens."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)

from .client import Client, Unanswered

PAUSE_S_MAX = 4.0
TIMEOUT_MS = 1000
PREFERRED = 0
# Fewer could not hold what min.insync.replicas asks for.
REPLICAS_MIN = 2


class Operator:
    def __init__(
        self, client: Client, partitions: list[TopicPartition], node_ids: list[int], note: Callable[[str], None]
    ) -> None:
        self._client, self._partitions, self._node_ids, self._note = client, partitions, node_ids, note
        self.is_stopping = False

    async def run(self) -> None:
        """What becomes of a request is for the cluster to know."""
        actions: list[Callable[[], Coroutine[Any, Any, None]]] = [self._elect, self._move]
        while not self.is_stopping:
            await self._client.clock.sleep(self._client.random.uniform(0, PAUSE_S_MAX))
            try:
                await self._client.random.choice(actions)()
            except Unanswered:
                await self._client.back_off()

    async def _elect(self) -> None:
        self._note("the operator asks for preferred leaders")
        request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=TIMEOUT_MS)
        await self._client.ask_any(request, ElectLeadersResponse)

    async def _move(self) -> None:
        """Other replicas in another order, or none to stop a move."""
        random = self._client.random
        topic, index = random.choice(self._partitions)
        replicas = random.sample(self._node_ids, random.randint(REPLICAS_MIN, len(self._node_ids)))
        self._note(f"the operator moves {topic}-{index} to {replicas}")
        wanted = AlterPartitionReassignmentsRequestPartition(partition_index=index, replicas=replicas)
        topics = [AlterPartitionReassignmentsRequestTopic(name=topic, partitions=[wanted])]
        request = AlterPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=topics)
        await self._client.ask_any(request, AlterPartitionReassignmentsResponse)
