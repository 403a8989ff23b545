"""A producer: one batch at a time to one partition, sent again until somebody answers.

With acks=all a session lasts as long as the simulation: what was never answered is sent again with its sequence number,
and must be there once. With acks=1 the first trouble ends a session, for the rest of it may be lost.
"""

from __future__ import annotations

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)
from flowstone.wire.record_batch import Record, build_batch
from tests.faults.checker import ACKS_ALL, Origin, make_value

from .client import Client, Unanswered
from .history import ClusterHistory

PAUSE_S_MAX = 0.4
BATCH_RECORDS_MAX = 3
PRODUCE_TIMEOUT_MS = 1500
# What a producer hears from a cluster in which something is wrong, and which will be right again.
RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class Producer:
    def __init__(
        self, client: Client, history: ClusterHistory, name: str, partition: TopicPartition, acks: int
    ) -> None:
        self._client, self._history, self._partition, self._acks = client, history, partition, acks
        self.name, self._session = name, 0
        self._producer_id, self._sequence = -1, 0
        self.acknowledged_count = 0
        self.is_stopping = False

    @property
    def _session_name(self) -> str:
        return f"{self.name}.{self._session}"

    async def run(self) -> None:
        """Until it is told to stop and has an answer to its last batch."""
        await self._begin()
        while not self.is_stopping:
            count = self._client.random.randint(1, BATCH_RECORDS_MAX)
            origins = [self._history.next_origin(self._partition, self._session_name) for _ in range(count)]
            await self._send(origins)
            await self._client.clock.sleep(self._client.random.uniform(0, PAUSE_S_MAX))

    async def _begin(self) -> None:
        """A new session."""
        self._session += 1
        self._producer_id, self._sequence = -1, 0
        while self._producer_id < 0:
            try:
                answer = await self._client.ask_any(
                    InitProducerIdRequest(transactional_id=None), InitProducerIdResponse
                )
                self._producer_id = answer.producer_id
            except Unanswered:
                pass
            if self._producer_id < 0:
                await self._client.back_off()

    async def _send(self, origins: list[Origin]) -> None:
        above = self._history.highest_acknowledged(self._partition)
        now_ms = self._client.clock.time_ms()
        records = [Record(index, now_ms, None, make_value(origin)) for index, origin in enumerate(origins)]
        batch = build_batch(records, producer_id=self._producer_id, producer_epoch=0, base_sequence=self._sequence)
        while True:
            code = ErrorCode.REQUEST_TIMED_OUT
            try:
                answer = await self._ask(batch)
                code = ErrorCode(answer.error_code)
                if code is ErrorCode.NONE:
                    self._history.acknowledge_batch(self._partition, answer.base_offset, origins, self._acks, above)
            except Unanswered:
                pass
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._sequence += len(origins)
                self.acknowledged_count += 1
                return
            if code not in RETRIABLE and self._acks == ACKS_ALL:
                self._history.note("refusal", self._partition, above, f"{origins[0]}: {code.name}")
                self.is_stopping = True
                return
            self._client.forget_leader(self._partition)
            await self._client.back_off()
            if self._acks != ACKS_ALL:
                await self._begin()
                return

    async def _ask(self, batch: bytes) -> ProduceResponsePartition:
        topic, index = self._partition
        if topic not in self._client.topic_ids:
            await self._client.learn(topic)
        data = [ProduceRequestPartition(index=index, records=batch)]
        topics = [ProduceRequestTopic(name=topic, topic_id=self._client.topic_ids[topic], partition_data=data)]
        request = ProduceRequest(acks=self._acks, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=topics)
        answer = await self._client.ask_leader(self._partition, request, ProduceResponse)
        return answer.responses[0].partition_responses[0]
