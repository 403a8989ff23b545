"""A producer: a few batches on their way to one partition, sent again until somebody answers.

With acks=all a session lasts as long as the simulation: what was never answered is sent again, in order and with its
sequence numbers, and must be there once. With acks=1 the first trouble ends a session, for the rest of it may be lost.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from flowstone.client.peer import Peer
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from flowstone.wire.record_batch import Record, build_batch
from tests.faults.checker import ACKS_ALL, Origin, make_value

from .client import Client, Unanswered
from .history import ClusterHistory

PAUSE_S_MAX = 0.4
BATCH_RECORDS_MAX = 3
# As many as an idempotent producer may have on their way.
IN_FLIGHT_MAX = 5
PRODUCE_TIMEOUT_MS = 1500
ACKNOWLEDGED = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
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


class Batch(NamedTuple):
    origins: list[Origin]
    data: bytes
    above: int  # what was acknowledged when it was first sent


class Producer:
    def __init__(
        self, client: Client, history: ClusterHistory, name: str, partition: TopicPartition, acks: int
    ) -> None:
        self.name = name
        self._client, self._history, self._partition, self._acks = client, history, partition, acks
        self._session, self._producer_id, self._sequence = 0, -1, 0
        self.acknowledged_count = 0
        self.is_stopping = False

    async def run(self) -> None:
        """Until it is told to stop and has an answer to its last batch."""
        await self._begin()
        while not self.is_stopping:
            in_flight = self._client.random.choice((1, 1, IN_FLIGHT_MAX)) if self._acks == ACKS_ALL else 1
            unanswered = [self._next_batch() for _ in range(in_flight)]
            while unanswered := await self._send(unanswered):
                self._client.forget_leader(self._partition)
                await self._client.back_off()
                if self._acks != ACKS_ALL:
                    await self._begin()
                    break
            await self._client.clock.sleep(self._client.random.uniform(0, PAUSE_S_MAX * in_flight))

    async def _begin(self) -> None:
        """A new session."""
        self._session += 1
        self._producer_id, self._sequence = -1, 0
        while self._producer_id < 0:
            try:
                request = InitProducerIdRequest(transactional_id=None)
                answer = await self._client.ask_any(request, InitProducerIdResponse)
                self._producer_id = answer.producer_id
            except Unanswered:
                pass
            if self._producer_id < 0:
                await self._client.back_off()

    def _next_batch(self) -> Batch:
        count = self._client.random.randint(1, BATCH_RECORDS_MAX)
        session = f"{self.name}.{self._session}"
        origins = [self._history.next_origin(self._partition, session) for _ in range(count)]
        now_ms = self._client.clock.time_ms()
        records = [Record(index, now_ms, None, make_value(origin)) for index, origin in enumerate(origins)]
        data = build_batch(records, producer_id=self._producer_id, producer_epoch=0, base_sequence=self._sequence)
        self._sequence += count
        return Batch(origins, data, self._history.highest_acknowledged(self._partition))

    async def _send(self, batches: list[Batch]) -> list[Batch]:
        """Those of them that nobody has acknowledged."""
        try:
            leader = await self._client.leader(self._partition)
        except Unanswered:
            return batches
        codes = await asyncio.gather(*(self._ask(leader, batch) for batch in batches))
        unanswered: list[Batch] = []
        for batch, code in zip(batches, codes, strict=True):
            if code in ACKNOWLEDGED:
                self.acknowledged_count += 1
                continue
            # Who comes after one that was not taken is refused for that.
            is_expected = code in RETRIABLE or (unanswered and code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            if self._acks == ACKS_ALL and not is_expected:
                self._history.note("refusal", self._partition, batch.above, f"{batch.origins[0]}: {code.name}")
                self.is_stopping = True
                return []
            unanswered.append(batch)
        return unanswered

    async def _ask(self, leader: Peer, batch: Batch) -> ErrorCode:
        topic, index = self._partition
        data = [ProduceRequestPartition(index=index, records=batch.data)]
        topics = [ProduceRequestTopic(name=topic, topic_id=self._client.topic_ids[topic], partition_data=data)]
        request = ProduceRequest(acks=self._acks, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=topics)
        try:
            response = await self._client.ask_over(leader, request, ProduceResponse)
        except Unanswered:
            return ErrorCode.REQUEST_TIMED_OUT
        answer = response.responses[0].partition_responses[0]
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE and answer.base_offset >= 0:  # else it was sent before, nobody knows where it is
            self._history.acknowledge_batch(self._partition, answer.base_offset, batch.origins, self._acks, batch.above)
        return code
