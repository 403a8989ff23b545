"""Transactions as a part of a simulation: their producers and readers, and what must hold of them in the end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from tests.sim.client import Client, Unanswered
from tests.sim.consumer import PartitionFetches
from tests.sim.history import ClusterHistory

from .group_offsets import GroupOffsets
from .history import TransactionHistory
from .producer import Account, TransactionalProducer
from .reader import CommittedReader
from .requests import V1_VERSIONS, V2_VERSIONS, TransactionRequests, TransactionRequestsV2


class NewTopic(NamedTuple):
    name: str
    partition_count: int
    configs: Mapping[str, str] = MappingProxyType({})


# What is sent to the second one is compacted all the time.
ACCOUNTS, BALANCES = "accounts", "balances"
COMPACTION = {
    "cleanup.policy": "compact",
    "max.compaction.lag.ms": "1500",
    "min.cleanable.dirty.ratio": "0.01",
    # Longer than a replica may be out of touch: one that misses a marker takes its transaction for open.
    "delete.retention.ms": "60000",
    "file.delete.delay.ms": "300",
}
ACCOUNTS_COUNT = 2
TOPICS = [NewTopic(ACCOUNTS, ACCOUNTS_COUNT), NewTopic(BALANCES, 1, COMPACTION)]
PRODUCERS = 3
TIMEOUTS_MS = (1_000, 3_000)
# Every transaction that was left open is ended after so long: the longest timeout, a scan, and the markers.
STABLE_S_MAX = 8.0
InSync = Callable[[TopicPartition], Sequence[int]]
MakeClient = Callable[[dict[type[Message], int] | None], Client]


class TransactionLoad:
    def __init__(self, make_client: MakeClient, history: ClusterHistory, racks: list[str], in_sync: InSync) -> None:
        self._make_client, self._in_sync = make_client, in_sync
        self.partitions = [
            TopicPartition(topic.name, index) for topic in TOPICS for index in range(topic.partition_count)
        ]
        self.history = TransactionHistory(history, [each for each in self.partitions if each.topic == BALANCES])
        client = make_client(None)
        self._client, random = client, client.random
        self._readers = [
            CommittedReader(make_client(None), self.history, partition, random.choice(("", *racks)))
            for partition in self.partitions
        ]
        self.groups = [
            GroupOffsets(make_client(None), self.history, f"x{number}-group", self.partitions[0])
            for number in range(PRODUCERS)
            if number % 2 == 0
        ]
        self.producers = [self._producer(number, is_v2=random.random() < 0.6) for number in range(PRODUCERS)]

    def _producer(self, number: int, *, is_v2: bool) -> TransactionalProducer:
        timeout_ms = self._client.random.choice(TIMEOUTS_MS)
        versions = V2_VERSIONS if is_v2 else V1_VERSIONS
        kind = TransactionRequestsV2 if is_v2 else TransactionRequests
        name = f"x{number}"
        group = next((each for each in self.groups if each.group_id.startswith(name)), None)
        account = Account(name, self.partitions, self.partitions[number % ACCOUNTS_COUNT], group, is_v2)

        def make_requests() -> TransactionRequests:
            return kind(self._make_client(versions), self._make_client(versions), name, timeout_ms)

        return TransactionalProducer(account, make_requests, self.history)

    def running(self) -> list[Coroutine[Any, Any, None]]:
        """Return what must be started."""
        return [
            *(each.run() for each in self.producers),
            *(each.run() for each in self._readers),
            *(each.watch() for each in self.groups),
        ]

    # The end

    def committed_counts(self) -> dict[str, int]:
        """Return how many transactions of each producer were committed."""
        return {each.name: self.history.committed_by[each.name] for each in self.producers}

    def stop_producers(self) -> None:
        for each in self.producers:
            each.is_stopping = True

    def unfinished(self) -> list[str]:
        return [each.name for each in self.producers if not each.is_at_rest]

    async def _await_stable(self) -> None:
        """Wait until every transaction is ended, of which the last ones are timed out by their coordinator."""
        clock = self._client.clock
        until_s = clock.monotonic() + STABLE_S_MAX
        while waiting := await _until_answered(self._client, self._unstable):
            if clock.monotonic() > until_s:
                for partition, detail in waiting.items():
                    self.history.note("stuck last stable offset", partition, 0, detail)
                return
            await self._client.back_off()

    async def _unstable(self) -> dict[TopicPartition, str]:
        """Return the partitions whose last stable offset is not their end. Raises Unanswered."""
        waiting = {}
        for partition in self.partitions:
            end_offset = await PartitionFetches(self._client, partition).end_offset()
            stable_offset = await self._reader(partition).stable_offset()
            if stable_offset != end_offset:
                waiting[partition] = f"{stable_offset} is stable, and {end_offset} is the end"
        return waiting

    def _reader(self, partition: TopicPartition, node_id: int | None = None) -> CommittedReader:
        return CommittedReader(self._client, self.history, partition, node_id=node_id)

    async def judge(self) -> None:
        """Read everything and hold it to what is known. Nothing is written any more."""
        for reader in self._readers:
            reader.is_stopping = True
        for group in self.groups:
            group.is_stopping = True
        await self._await_stable()
        logs = {}
        for partition in self.partitions:
            logs[partition] = await _until_answered(self._client, self._reader(partition).read_all)
        positions = {
            group.group_id: await _until_answered(self._client, lambda group=group: group.fetch(require_stable=True))
            for group in self.groups
        }
        self.history.check(logs, positions)
        for partition in self.partitions:
            for node_id in self._in_sync(partition):
                reader = self._reader(partition, node_id)
                records = await _until_answered(self._client, reader.read_all)
                self.history.check_log(partition, records, reader.name)


async def _until_answered(client: Client, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    while True:
        try:
            return await ask()
        except Unanswered:
            await client.back_off()
