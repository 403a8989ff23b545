"""The requests of one instance of a transactional producer, in the words of either protocol.

V1 is spoken by clients before KIP-890 (librdkafka): partitions are added before they are written to, and the epoch
stays. V2 (Java, franz-go) adds them with the first batch, and every end raises the epoch.

Each request is asked once; its error code is the result. `Unanswered` is raised if nobody knows what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tests.faults.checker import ACKS_ALL
from tests.sim.client import TRANSACTION, Client, Unanswered

PRODUCE_TIMEOUT_MS = 1500
V1_VERSIONS: dict[type[Message], int] = {
    ProduceRequest: 10,
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 3,
    AddOffsetsToTxnRequest: 3,
    TxnOffsetCommitRequest: 3,
    EndTxnRequest: 3,
}
V2_VERSIONS: dict[type[Message], int] = {AddPartitionsToTxnRequest: 3}
NO_PRODUCER = -1, -1
LATE_SHARE, LATE_S_MAX = 0.06, 2.5
Ask = Callable[[Client], Awaitable[object]]


class TransactionRequests:
    """What an instance says, and the producer id and epoch under which it says it."""

    def __init__(self, client: Client, late: Client, transactional_id: str, timeout_ms: int) -> None:
        """Some requests come again much later: by the connections of `late`, as if the network had kept them."""
        self.client, self._late, self.transactional_id = client, late, transactional_id
        self.timeout_ms = timeout_ms
        self.producer = NO_PRODUCER
        self._late_tasks: list[asyncio.Task[None]] = []

    async def initialize(self, producer: tuple[int, int] = NO_PRODUCER) -> ErrorCode:
        """Become the producer; with an id and epoch, go on as the one that has them."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=producer[0],
            producer_epoch=producer[1],
        )
        answer = await self._ask_coordinator(request, InitProducerIdResponse)
        if answer.error_code == ErrorCode.NONE:
            self.producer = answer.producer_id, answer.producer_epoch
        return self._code(answer.error_code)

    async def add_partitions(self, partitions: list[TopicPartition]) -> ErrorCode:
        topics = [
            AddPartitionsToTxnRequestTopic(
                name=topic, partitions=[each.partition for each in partitions if each.topic == topic]
            )
            for topic in dict.fromkeys(each.topic for each in partitions)
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer[0],
            v3_and_below_producer_epoch=self.producer[1],
            v3_and_below_topics=topics,
        )
        answer = await self._ask_coordinator(request, AddPartitionsToTxnResponse)
        codes = [
            each.partition_error_code
            for found in answer.results_by_topic_v3_and_below
            for each in found.results_by_partition
        ]
        return self._code(next((code for code in codes if code), ErrorCode.NONE))

    async def add_group(self, group_id: str) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            group_id=group_id,
        )
        answer = await self._ask_coordinator(request, AddOffsetsToTxnResponse)
        return self._code(answer.error_code)

    async def produce(self, partition: TopicPartition, batch: bytes) -> tuple[ErrorCode, int]:
        """Return the code, and the batch's offset if it is known."""
        await self.client.leader(partition)
        wanted = ProduceRequestTopic(
            name=partition.topic,
            topic_id=self.client.topic_ids[partition.topic],
            partition_data=[ProduceRequestPartition(index=partition.partition, records=batch)],
        )
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=ACKS_ALL,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[wanted],
        )
        self._repeat_late(lambda late: late.ask_leader(partition, request, ProduceResponse))
        response = await self.client.ask_leader(partition, request, ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.client.forget_leader(partition)
        return ErrorCode(answer.error_code), answer.base_offset

    async def commit_offset(self, group_id: str, partition: TopicPartition, offset: int, metadata: str) -> ErrorCode:
        wanted = TxnOffsetCommitRequestPartition(
            partition_index=partition.partition, committed_offset=offset, committed_metadata=metadata
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            topics=[TxnOffsetCommitRequestTopic(name=partition.topic, partitions=[wanted])],
        )
        self._repeat_offsets_late(group_id, request)
        answer = await self.client.ask_coordinator(group_id, request, TxnOffsetCommitResponse)
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self.client.forget_coordinator(group_id)
        return code

    async def end(self, *, is_commit: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            committed=is_commit,
        )
        self._repeat_end_late(request)
        answer = await self._ask_coordinator(request, EndTxnResponse)
        if answer.error_code == ErrorCode.NONE and answer.producer_id >= 0:
            self.producer = answer.producer_id, answer.producer_epoch
        return self._code(answer.error_code)

    async def _ask_coordinator(self, request: Message, kind: type[Any]) -> Any:
        return await self.client.ask_coordinator(self.transactional_id, request, kind, TRANSACTION)

    def _code(self, code: int) -> ErrorCode:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self.client.forget_coordinator(self.transactional_id, TRANSACTION)
        return ErrorCode(code)

    # What comes late

    def _repeat_late(self, ask: Ask) -> None:
        if self.client.random.random() < LATE_SHARE:
            self._late_tasks.append(asyncio.ensure_future(self._after_a_while(ask)))

    async def _after_a_while(self, ask: Ask) -> None:
        await self.client.clock.sleep(self.client.random.uniform(0, LATE_S_MAX))
        with suppress(Unanswered):
            await ask(self._late)

    def _repeat_offsets_late(self, group_id: str, request: TxnOffsetCommitRequest) -> None:
        """With V1 nothing tells the offsets of one transaction from those of the next."""

    def _repeat_end_late(self, request: EndTxnRequest) -> None:
        """With V1 nothing tells the end of one transaction from that of the next."""


class TransactionRequestsV2(TransactionRequests):
    def _repeat_offsets_late(self, group_id: str, request: TxnOffsetCommitRequest) -> None:
        self._repeat_late(lambda late: late.ask_coordinator(group_id, request, TxnOffsetCommitResponse))

    def _repeat_end_late(self, request: EndTxnRequest) -> None:
        transactional_id = self.transactional_id
        self._repeat_late(lambda late: late.ask_coordinator(transactional_id, request, EndTxnResponse, TRANSACTION))
