"""The shards of one coordinator on this broker: one for each partition of its internal topic that the broker leads.

Owns which shards are hosted, following the metadata: a partition that this broker begins to lead is loaded. One that it
leads no longer, or in another epoch, is closed, because its log may have been changed by another leader since. Also
owns the creation of the topic. The coordinator, a small class around a host, defines requests; its state machine
handles them.

A key's shard is found by Kafka's rule for all of its coordinators (`partition_for`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from flowstone.broker.coordinators.internal_logs import PartitionInternalLog
from flowstone.broker.coordinators.internal_topics import InternalTopic, new_topic
from flowstone.broker.loop.workers import Workers
from flowstone.cluster.decisions.configs import broker_config
from flowstone.cluster.decisions.topic_changes import create_topics
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.image.records import MetadataRecord, TopicRecord
from flowstone.cluster.metadata import Metadata
from flowstone.config import BrokerConfig
from flowstone.coordinator.append_rounds import AppendRounds
from flowstone.coordinator.effects import Effects
from flowstone.coordinator.partitioning import partition_for
from flowstone.coordinator.record_batches import RecordCodec
from flowstone.coordinator.replay_reports import ReplayReports
from flowstone.coordinator.runtime import Call, Host, HostedShard, Machine, Token, refuse_task
from flowstone.coordinator.skipped_records import SkippedRecords
from flowstone.coordinator.tick_queue import TickQueue
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock
from flowstone.promise import Promise
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition

# Keys whose shard is remembered: the same ones ask again and again. Not long ones: strangers make them up.
LOCATED_KEYS_MAX = 4096
LOCATED_KEY_LENGTH_MAX = 256

MachineCall = Callable[[Machine, int, Token], Effects[Any]]


@dataclass(frozen=True, slots=True)
class HostServices:
    """The parts of the broker that the host of every coordinator needs."""

    config: BrokerConfig
    clock: Clock
    metadata: Metadata
    partitions: Partitions
    workers: Workers


class CoordinatorHost(Generic[Machine]):
    def __init__(
        self,
        topic: InternalTopic,
        codec: RecordCodec,
        new_machine: Callable[[int], Machine],
        services: HostServices,
        perform: Callable[[HostedShard[Machine], Any], None] = refuse_task,
    ) -> None:
        """Create a host without shards. `new_machine` makes a state machine, given the leader epoch of the shard's
        partition.

        `perform` starts a task that a shard's state machine has returned.
        """
        self._topic, self._services, self._metadata = topic, services, services.metadata
        self._host = Host(
            clock=services.clock,
            codec=codec,
            new_machine=new_machine,
            perform=perform,
            load_lock=asyncio.Lock(),
            rounds=AppendRounds(),
            reports=ReplayReports(services.clock.monotonic),
            skipped=SkippedRecords(),
            ticks=TickQueue(services.clock),
        )
        self._shards: dict[int, HostedShard[Machine]] = {}
        # The shards of keys that were asked for, as long as no shard comes or goes.
        self._shards_by_key: dict[str, HostedShard[Machine]] = {}
        self._closed = False
        self._host_shards(self._metadata.image)
        self._metadata.on_change(self._follow)

    def close(self) -> None:
        """Refuse all waiting and further requests, because the broker stops."""
        self._closed = True
        for shard in self._shards.values():
            shard.close(ErrorCode.NOT_COORDINATOR)

    async def wait_loaded(self, timeout_s: float) -> None:
        """Return when each shard hosted now has been loaded or has failed to load, or after `timeout_s`."""
        finished = asyncio.Event()
        loads = {shard.loading for shard in self._shards.values()}

        def loaded(load: asyncio.Future[None]) -> None:
            loads.discard(load)
            if not loads:
                finished.set()

        timer = self._services.clock.call_later(timeout_s, finished.set)
        for load in tuple(loads):
            load.add_done_callback(loaded)
        if loads:
            await finished.wait()
        timer.cancel()

    # The topic

    def partition_of(self, key: str) -> TopicPartition | None:
        """Return the partition that has the key's state, or None while the topic does not exist."""
        topic = self._metadata.image.topics.get(self._topic.name)
        if topic is None:
            return None
        return TopicPartition(topic.name, partition_for(key, len(topic.partitions)))

    async def create_topic(self) -> None:
        """Create the internal topic unless it exists. Raises ApiError if that fails."""
        config = self._services.config
        results = await self._metadata.change(
            lambda image: create_topics(
                image, [new_topic(self._topic, image)], broker_config(image, config), random_id, internal_allowed=True
            )
        )
        if results[0].error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise ApiError(results[0].error, results[0].message or "")

    # Requests

    def request(self, key: str, call: MachineCall[Machine], token: Token | None = None) -> Token:
        """Pass a request to the key's shard; return the promise of its response, `token` if given.

        The promise raises ApiError if the request fails.
        """
        shard = self.shard_of(key)
        if shard is not None:
            return shard.request(call, token)
        token = Promise() if token is None else token
        token.set_exception(ApiError(ErrorCode.NOT_COORDINATOR))
        return token

    def request_all(self, call: MachineCall[Machine]) -> list[Token]:
        """Pass a request to every shard; return the promises of their responses."""
        return list(self.request_each(call))

    def request_each(self, call: MachineCall[Machine]) -> Iterator[Token]:
        """Pass a request to one shard after the other as the iterator advances; yield the promises of their responses.

        A caller whose request takes long in many shards serves others in between.
        """
        for shard in tuple(self._shards.values()):
            yield shard.request(call)

    def execute_all(self, call: Call[Machine]) -> None:
        """Call the state machine of every shard, for an event that has no response."""
        for shard in self._shards.values():
            shard.execute(call)

    def shard_of(self, key: str) -> HostedShard[Machine] | None:
        """Return the shard that has the key's state, or None if this broker does not lead its partition."""
        shard = self._shards_by_key.get(key)
        if shard is None and (shard := self._find_shard(key)) is not None:
            if len(self._shards_by_key) >= LOCATED_KEYS_MAX:
                self._shards_by_key.clear()
            if len(key) <= LOCATED_KEY_LENGTH_MAX:
                self._shards_by_key[key] = shard
        return shard

    def shard_at(self, index: int) -> HostedShard[Machine] | None:
        """Return the shard of a partition of the topic, or None if this broker does not lead it."""
        return self._shards.get(index)

    def shards(self) -> list[tuple[int, HostedShard[Machine]]]:
        """Return the shards on this broker, by the partition of the topic."""
        return list(self._shards.items())

    def _find_shard(self, key: str) -> HostedShard[Machine] | None:
        place = self.partition_of(key)
        if place is None:
            return None
        shard = self._shards.get(place.partition)
        if shard is None and not self._closed:
            self._host_shards(self._metadata.image)  # a partition may open a while after its topic was made
            shard = self._shards.get(place.partition)
        return shard

    def machines(self) -> list[Machine]:
        """Return the state machines of all loaded shards, to be read only."""
        return [shard.machine for shard in self._shards.values() if shard.machine is not None]

    # Following the metadata

    def _follow(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        if self._closed or not any(isinstance(record, TopicRecord) for record in records):
            return
        known = before.topics.get(self._topic.name)
        if known is not None and known.topic_id not in after.topics_by_id:
            for index in tuple(self._shards):
                self._unhost(index)
        self._shards_by_key.clear()
        self._host_shards(after)

    def _host_shards(self, image: ClusterImage) -> None:
        """Load the shards of partitions that this broker leads now; close those led elsewhere or in another epoch."""
        topic = image.topics.get(self._topic.name)
        for index in range(len(topic.partitions)) if topic is not None else ():
            place = TopicPartition(self._topic.name, index)
            partition, shard = self._services.partitions.find(place), self._shards.get(index)
            leads = partition is not None and partition.is_leader
            if shard is not None and (partition is None or not leads or partition.leader_epoch != shard.leader_epoch):
                self._unhost(index)
            if partition is not None and leads and index not in self._shards:
                log = PartitionInternalLog(partition, self._services.workers)
                self._shards[index] = HostedShard(str(place), log, self._host, partition.leader_epoch)
                self._shards_by_key.clear()

    def _unhost(self, index: int) -> None:
        self._shards_by_key.clear()
        self._shards.pop(index).close(ErrorCode.NOT_COORDINATOR)
