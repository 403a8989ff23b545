"""Share groups as a part of a simulation: who sends tasks, who handles them, and what must hold of them in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.end_markers import read_end_marker
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
)
from flowstone.wire.record_batch import Record, decode_records, parse_header
from tests.sim.client import Client, Unanswered
from tests.sim.cluster import Cluster
from tests.sim.consumer import PartitionFetches
from tests.sim.history import ClusterHistory
from tests.sim.transactions.load import COMPACTION, NewTopic
from tests.support.wire_client import whole_batches

from .history import Group, Letter, QueueHistory, StoredTasks
from .sender import Deleter, Sender, TransactionalSender
from .worker import Worker

# The records of the second topic are compacted all the time.
TASKS, COMPACTED, LETTERS = "tasks", "latest-tasks", "dlq.tasks"
PARTITIONS = 2
TOPICS = [
    NewTopic(TASKS, PARTITIONS),
    NewTopic(COMPACTED, 1, COMPACTION),
    NewTopic(LETTERS, 1, {"errors.deadletterqueue.group.enable": "true"}),
]
GROUPS = (Group("keyed", True, 4, 0.4), Group("free", False, 4, 0.0))
GROUP_RESOURCE, SHARE_COORDINATOR = 32, 2
WORKERS = 2  # of each group for each partition
COMMITTED_SHARE = 0.6  # of the groups that read committed records alone
BACKOFF_MAX_MS = 2000
# Nothing is left when all workers have heard so often that there is nothing: longer than locks, delays and
# transactions last.
QUIET_MIN = 45
MakeClient = Callable[[dict[type[Message], int] | None], Client]


class QueueLoad:
    def __init__(self, make_client: MakeClient, history: ClusterHistory, cluster: Cluster) -> None:
        self._client = make_client(None)
        self._cluster = cluster
        self.history = QueueHistory(history, COMPACTED)
        plain = [TopicPartition(TASKS, index) for index in range(PARTITIONS)]
        self.partitions = [*plain, TopicPartition(COMPACTED, 0)]
        random = self._client.random
        self._groups = [each._replace(is_committed=random.random() < COMMITTED_SHARE) for each in GROUPS]
        self._sender = Sender(make_client(None), self.partitions, COMPACTED)
        self._transactions = TransactionalSender(make_client, self._sender, self.partitions)
        self._deleter = Deleter(make_client(None), self._sender, self.history, plain)
        self._workers = [
            Worker(
                make_client(None),
                self.history,
                group,
                f"{group.name}-{partition}-{number}",
                partition,
                self._are_clocks_right,
            )
            for group in self._groups
            for partition in self.partitions
            for number in range(WORKERS)
        ]

    def _are_clocks_right(self) -> bool:
        return not any(machine.clock.jumped_ms for machine in self._cluster.machines)

    def running(self) -> list[Coroutine[Any, Any, None]]:
        """Return what must be started."""
        return [self._run()]

    async def _run(self) -> None:
        await _until_answered(self._client, self._configure)
        for topic in (TASKS, COMPACTED):
            await _until_answered(self._client, lambda topic=topic: self._client.learn(topic))
        for group in self._groups:
            for partition in self.partitions:
                await _until_answered(self._client, lambda group=group, at=partition: self._initialize(group, at))
        clients = self._sender, self._transactions, self._deleter, *self._workers
        await asyncio.gather(*(each.run() for each in clients))

    # Beginning

    async def _configure(self) -> None:
        resources = []
        for group in self._groups:
            settings = {
                "errors.deadletterqueue.topic.name": LETTERS,
                "share.delivery.count.limit": str(group.delivery_count_limit),
                "share.redelivery.backoff.ms": str(int(group.backoff_s * 1000)),
                "share.redelivery.backoff.max.ms": str(BACKOFF_MAX_MS),
                "share.isolation.level": "read_committed" if group.is_committed else "read_uncommitted",
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

    # The end

    def finish(self) -> None:
        """Send no more, and accept everything."""
        self._sender.is_stopping = True
        for worker in self._workers:
            worker.is_finishing = True

    def unfinished(self) -> list[str]:
        return [f"{each.group.name} {each.partition}" for each in self._workers if each.quiet_count < QUIET_MIN]

    async def judge(self) -> None:
        """Read everything and hold it to what is known. Nothing is written any more."""
        for worker in self._workers:
            worker.is_stopping = True
        stored = {}
        for partition in self.partitions:
            stored[partition] = await _until_answered(self._client, lambda at=partition: self._stored(at))
        letters = await _until_answered(self._client, self._letters)
        self.history.check(self._groups, stored, letters)

    async def _stored(self, partition: TopicPartition) -> StoredTasks:
        """Return the offsets of the records in a log, and which of them are of aborted transactions.

        Replicas compact on their own: of a compacted log these are only the last record of each key.
        """
        fetches = PartitionFetches(self._client, partition)
        end_offset, position = await fetches.end_offset(), await fetches.start_offset()
        keys, aborted, ongoing = dict[int, bytes | None](), set[int](), dict[int, set[int]]()
        while position < end_offset:
            code, answer, _ = await fetches.fetch(position)
            if code is not ErrorCode.NONE:
                raise Unanswered(code.name)
            for batch in whole_batches(bytes(answer.records or b"")):
                header = parse_header(batch)
                if header.is_control:
                    marker = read_end_marker(batch, 0, header)
                    written = ongoing.pop(header.producer_id, set())
                    aborted |= set() if marker is None or marker.is_commit else written
                else:
                    found = {record.offset: record.key for record in decode_records(batch)}
                    keys |= found
                    if header.is_transactional:
                        ongoing.setdefault(header.producer_id, set()).update(found)
                position = max(position, header.next_offset)
        offsets = set(keys)
        if partition.topic == COMPACTED:
            offsets = set({key: offset for offset, key in keys.items() if offset not in aborted}.values())
        return StoredTasks(frozenset(offsets), frozenset(aborted))

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
