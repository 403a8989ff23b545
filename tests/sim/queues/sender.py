"""Who sends tasks in a simulation: plainly, in transactions of which some are aborted, and who deletes old ones."""

from __future__ import annotations

from collections.abc import Callable

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteRecordsResponse,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from flowstone.wire.record_batch import Record, build_batch
from tests.faults.checker import ACKS_ALL
from tests.sim.client import Client, Unanswered
from tests.sim.consumer import PartitionFetches
from tests.sim.transactions.requests import V2_VERSIONS, TransactionRequestsV2

from .history import QueueHistory
from .worker import DOOMED, POISON

KEYS = (None, b"k0", b"k1", b"k2", b"k3")
VALUES = (*[b"task"] * 19, POISON)
BATCH_MAX = 5
PAUSE_S_MAX = 0.25
PRODUCE_TIMEOUT_MS = 1500
TRANSACTIONAL_ID, TRANSACTION_TIMEOUT_MS = "task-transactions", 1000
ABORTED_SHARE = 0.4
TRANSACTION_PAUSE_S_MAX = 1.0
DELETION_PAUSE_S_MAX = 6.0
KEPT_MIN, KEPT_MAX = 3, 30  # records before the end that a deletion leaves
DELETE_TIMEOUT_MS = 1000
MakeClient = Callable[[dict[type[Message], int] | None], Client]


class Sender:
    """A client that sends batches of tasks to random partitions."""

    def __init__(self, client: Client, partitions: list[TopicPartition], compacted: str) -> None:
        self.client, self._partitions, self._compacted = client, partitions, compacted
        self.is_stopping = False
        self.sent_count = 0

    async def run(self) -> None:
        while not self.is_stopping:
            partition = self.client.random.choice(self._partitions)
            try:
                await self._send(partition)
            except Unanswered:
                self.client.forget_leader(partition)
                await self.client.back_off()
            await self.client.clock.sleep(self.client.random.uniform(0, PAUSE_S_MAX))

    async def _send(self, partition: TopicPartition) -> None:
        records = self.records(partition)
        await self.client.leader(partition)
        data = [ProduceRequestPartition(index=partition.partition, records=build_batch(records))]
        topic_id = self.client.topic_ids[partition.topic]
        topics = [ProduceRequestTopic(name=partition.topic, topic_id=topic_id, partition_data=data)]
        request = ProduceRequest(acks=ACKS_ALL, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=topics)
        answer = await self.client.ask_leader(partition, request, ProduceResponse)
        if answer.responses[0].partition_responses[0].error_code:
            raise Unanswered("refused")
        self.sent_count += len(records)

    def records(self, partition: TopicPartition, value: bytes | None = None) -> list[Record]:
        """Return the records of a batch, all with this value if one is given."""
        random, now_ms = self.client.random, self.client.clock.time_ms()
        keys = KEYS[1:] if partition.topic == self._compacted else KEYS
        return [
            Record(index, now_ms, random.choice(keys), random.choice(VALUES) if value is None else value)
            for index in range(random.randint(1, BATCH_MAX))
        ]


class TransactionalSender:
    """Sends tasks in transactions; every record of one that is to be aborted has the value `DOOMED`."""

    def __init__(self, make_client: MakeClient, sender: Sender, partitions: list[TopicPartition]) -> None:
        self._client, self._late = make_client(V2_VERSIONS), make_client(V2_VERSIONS)
        self._sender, self._partitions = sender, partitions
        self.ended_count = 0

    async def run(self) -> None:
        while not self._sender.is_stopping:
            requests = TransactionRequestsV2(self._client, self._late, TRANSACTIONAL_ID, TRANSACTION_TIMEOUT_MS)
            try:
                _expect_none(await requests.initialize())
                while not self._sender.is_stopping:
                    await self._transaction(requests)
            except Unanswered:
                await self._client.back_off()

    async def _transaction(self, requests: TransactionRequestsV2) -> None:
        random = self._client.random
        is_doomed = random.random() < ABORTED_SHARE
        for partition in random.sample(self._partitions, random.randint(1, len(self._partitions))):
            producer_id, epoch = requests.producer
            batch = build_batch(
                self._sender.records(partition, DOOMED if is_doomed else None),
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=0,  # each transaction has an epoch of its own, and one batch for a partition
                is_transactional=True,
            )
            code, _ = await requests.produce(partition, batch)
            _expect_none(code)
        _expect_none(await requests.end(is_commit=not is_doomed))
        self.ended_count += 1
        await self._client.clock.sleep(random.uniform(0, TRANSACTION_PAUSE_S_MAX))


class Deleter:
    """Deletes old tasks from time to time, as retention does."""

    def __init__(self, client: Client, sender: Sender, history: QueueHistory, partitions: list[TopicPartition]) -> None:
        self._client, self._sender, self._history, self._partitions = client, sender, history, partitions

    async def run(self) -> None:
        random = self._client.random
        while not self._sender.is_stopping:
            await self._client.clock.sleep(random.uniform(0, DELETION_PAUSE_S_MAX))
            partition = random.choice(self._partitions)
            try:
                await self._delete(partition)
            except Unanswered:
                self._client.forget_leader(partition)
                await self._client.back_off()

    async def _delete(self, partition: TopicPartition) -> None:
        end_offset = await PartitionFetches(self._client, partition).end_offset()
        offset = end_offset - self._client.random.randint(KEPT_MIN, KEPT_MAX)
        if offset <= 0 or self._sender.is_stopping:
            return
        self._history.delete(partition, offset)
        wanted = DeleteRecordsRequestPartition(partition_index=partition.partition, offset=offset)
        topics = [DeleteRecordsRequestTopic(name=partition.topic, partitions=[wanted])]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=DELETE_TIMEOUT_MS)
        await self._client.ask_leader(partition, request, DeleteRecordsResponse)


def _expect_none(code: ErrorCode) -> None:
    if code is not ErrorCode.NONE:
        raise Unanswered(code.name)
