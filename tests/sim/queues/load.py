"""Share groups as a part of a simulation: who sends tasks, who handles them, and what must hold of them in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateRequestPartition,
    InitializeShareGroupStateRequestTopic,
    InitializeShareGroupStateResponse,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from flowstone.wire.record_batch import Record, build_batch, decode_records
from tests.faults.checker import ACKS_ALL
from tests.sim.client import Client, Unanswered
from tests.sim.cluster import Cluster
from tests.sim.consumer import PartitionFetches
from tests.sim.history import ClusterHistory
from tests.sim.transactions.load import NewTopic
from tests.support.wire_client import whole_batches

from .history import Group, Letter, QueueHistory
from .worker import POISON, Worker

TASKS, LETTERS = "tasks", "dlq.tasks"
PARTITIONS = 2
TOPICS = [
    NewTopic(TASKS, PARTITIONS),
    NewTopic(LETTERS, 1, {"errors.deadletterqueue.group.enable": "true"}),
]
GROUPS = (Group("keyed", True, 4, 0.4), Group("free", False, 4, 0.0))
GROUP_RESOURCE, SHARE_COORDINATOR = 32, 2
WORKERS = 2  # of each group for each partition
KEYS = (None, b"k0", b"k1", b"k2", b"k3")
VALUES = (*[b"task"] * 19, POISON)
BATCH_MAX = 5
BACKOFF_MAX_MS = 2000
PAUSE_S_MAX = 0.25
PRODUCE_TIMEOUT_MS = 1500
# Nothing is left when all workers have heard so often that there is nothing: longer than locks and delays last.
QUIET_MIN = 30
MakeClient = Callable[[dict[type[Message], int] | None], Client]


class QueueLoad:
    def __init__(self, make_client: MakeClient, history: ClusterHistory, cluster: Cluster) -> None:
        self._client = make_client(None)
        self._cluster = cluster
        self.history = QueueHistory(history)
        self.partitions = [TopicPartition(TASKS, index) for index in range(PARTITIONS)]
        self._workers = [
            Worker(
                make_client(None),
                self.history,
                group,
                f"{group.name}-{partition.partition}-{number}",
                partition,
                self._are_clocks_right,
            )
            for group in GROUPS
            for partition in self.partitions
            for number in range(WORKERS)
        ]
        self.sent_count = 0
        self._is_sending = True

    def _are_clocks_right(self) -> bool:
        return not any(machine.clock.jumped_ms for machine in self._cluster.machines)

    def running(self) -> list[Coroutine[Any, Any, None]]:
        """Return what must be started."""
        return [self._run()]

    async def _run(self) -> None:
        await _until_answered(self._client, self._configure)
        await _until_answered(self._client, lambda: self._client.learn(TASKS))
        for group in GROUPS:
            for partition in self.partitions:
                await _until_answered(self._client, lambda group=group, at=partition: self._initialize(group, at))
        await asyncio.gather(self._send(), *(worker.run() for worker in self._workers))

    # Beginning

    async def _configure(self) -> None:
        resources = []
        for group in GROUPS:
            settings = {
                "errors.deadletterqueue.topic.name": LETTERS,
                "share.delivery.count.limit": str(group.delivery_count_limit),
                "share.redelivery.backoff.ms": str(int(group.backoff_s * 1000)),
                "share.redelivery.backoff.max.ms": str(BACKOFF_MAX_MS),
                "share.ordering": "key" if group.is_keyed else "none",
            }
            configs = [
                IncrementalAlterConfigsRequestConfig(name=name, config_operation=0, value=value)
                for name, value in settings.items()
            ]
            resources.append(
                IncrementalAlterConfigsRequestResource(
                    resource_type=GROUP_RESOURCE, resource_name=group.name, configs=configs
                )
            )
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        answer = await self._client.ask_any(request, IncrementalAlterConfigsResponse)
        for each in answer.responses:
            if each.error_code:
                raise Unanswered(f"{ErrorCode(each.error_code).name}: {each.error_message}")

    async def _initialize(self, group: Group, partition: TopicPartition) -> None:
        topic_id = self._client.topic_ids[partition.topic]
        key = str(ShareKey(group.name, topic_id, partition.partition))
        state = InitializeShareGroupStateRequestPartition(partition=partition.partition, state_epoch=0, start_offset=0)
        topic = InitializeShareGroupStateRequestTopic(topic_id=topic_id, partitions=[state])
        request = InitializeShareGroupStateRequest(group_id=group.name, topics=[topic])
        answer = await self._client.ask_coordinator(key, request, InitializeShareGroupStateResponse, SHARE_COORDINATOR)
        code = answer.results[0].partitions[0].error_code
        if code:
            self._client.forget_coordinator(key, SHARE_COORDINATOR)
            raise Unanswered(ErrorCode(code).name)

    # Sending

    async def _send(self) -> None:
        random = self._client.random
        while self._is_sending:
            partition = random.choice(self.partitions)
            now_ms = self._client.clock.time_ms()
            records = [
                Record(index, now_ms, random.choice(KEYS), random.choice(VALUES))
                for index in range(random.randint(1, BATCH_MAX))
            ]
            data = [ProduceRequestPartition(index=partition.partition, records=build_batch(records))]
            topics = [ProduceRequestTopic(name=TASKS, topic_id=self._client.topic_ids[TASKS], partition_data=data)]
            request = ProduceRequest(acks=ACKS_ALL, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=topics)
            try:
                answer = await self._client.ask_leader(partition, request, ProduceResponse)
                if answer.responses[0].partition_responses[0].error_code:
                    raise Unanswered("refused")
                self.sent_count += len(records)
            except Unanswered:
                self._client.forget_leader(partition)
                await self._client.back_off()
            await self._client.clock.sleep(random.uniform(0, PAUSE_S_MAX))

    # The end

    def finish(self) -> None:
        """Send no more, and accept everything."""
        self._is_sending = False
        for worker in self._workers:
            worker.is_finishing = True

    def unfinished(self) -> list[str]:
        return [f"{each.group.name} {each.partition}" for each in self._workers if each.quiet_count < QUIET_MIN]

    async def judge(self) -> None:
        """Read everything and hold it to what is known. Nothing is written any more."""
        for worker in self._workers:
            worker.is_stopping = True
        ends = {}
        for partition in self.partitions:
            ends[partition] = await _until_answered(self._client, PartitionFetches(self._client, partition).end_offset)
        letters = await _until_answered(self._client, self._letters)
        self.history.check(GROUPS, ends, letters)

    async def _letters(self) -> list[Letter]:
        partition = TopicPartition(LETTERS, 0)
        fetches = PartitionFetches(self._client, partition)
        end_offset, position, found = await fetches.end_offset(), 0, list[Letter]()
        while position < end_offset:
            code, answer, _ = await fetches.fetch(position)
            if code is not ErrorCode.NONE:
                raise Unanswered(code.name)
            for batch in whole_batches(bytes(answer.records or b"")):
                for record in decode_records(batch):
                    if record.offset >= position:
                        found.append(_letter(record))
                        position = record.offset + 1
        return found


def _letter(record: Record) -> Letter:
    headers = {name: (value or b"").decode() for name, value in record.headers}
    source = TopicPartition(headers["__dlq.errors.topic"], int(headers["__dlq.errors.partition"]))
    return Letter(headers["__dlq.errors.group"], source, int(headers["__dlq.errors.offset"]))


async def _until_answered(client: Client, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    while True:
        try:
            return await ask()
        except Unanswered:
            await client.back_off()
