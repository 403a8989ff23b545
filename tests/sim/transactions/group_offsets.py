"""The committed offset of a group that takes part in transactions: where it is, as its consumers would ask."""

from __future__ import annotations

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tests.sim.client import Client, Unanswered

from .history import TransactionHistory

PAUSE_S_MAX = 0.5


class GroupOffsets:
    def __init__(self, client: Client, history: TransactionHistory, group_id: str, partition: TopicPartition) -> None:
        self.group_id, self.partition = group_id, partition
        self._client, self._history = client, history
        self.is_stopping = False

    async def watch(self) -> None:
        """Ask for the offset again and again, also with what is pending left aside."""
        while not self.is_stopping:
            try:
                await self.fetch(require_stable=self._client.random.random() < 0.5)
            except Unanswered:
                await self._client.back_off()
            await self._client.clock.sleep(self._client.random.uniform(0, PAUSE_S_MAX))

    async def position(self, timeout_s: float) -> int:
        """Return the offset from which a new consumer goes on. Raises Unanswered if nobody tells it for so long."""
        until_s = self._client.clock.monotonic() + timeout_s
        while True:
            try:
                return await self.fetch(require_stable=True)
            except Unanswered:
                if self._client.clock.monotonic() > until_s:
                    raise
                await self._client.back_off()

    async def fetch(self, *, require_stable: bool) -> int:
        """Return the committed offset, 0 if there is none. Raises Unanswered, also while it is not stable."""
        # A commit is acknowledged before its markers are written: until then the group is where it was, unstable.
        promised = self._history.promised(self.group_id) if require_stable else 0
        topic, index = self.partition
        if topic not in self._client.topic_ids:
            await self._client.learn(topic)
        topic_id = self._client.topic_ids[topic]
        topics = [OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[index])]
        group = OffsetFetchRequestGroup(group_id=self.group_id, topics=topics)
        request = OffsetFetchRequest(groups=[group], require_stable=require_stable)
        answer = (await self._client.ask_coordinator(self.group_id, request, OffsetFetchResponse)).groups[0]
        found = answer.topics[0].partitions[0] if not answer.error_code else None
        code = ErrorCode(answer.error_code if found is None else found.error_code)
        if found is None or code is not ErrorCode.NONE:
            if code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                self._client.forget_coordinator(self.group_id)
            raise Unanswered(code.name)
        offset = max(0, found.committed_offset)
        self._history.see_position(self.group_id, offset, found.metadata or "", promised)
        return offset
