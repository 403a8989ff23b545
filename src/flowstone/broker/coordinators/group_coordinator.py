"""The group coordinator of this broker: the shards of `__consumer_offsets` that it leads, and the topic itself.

Owns which shards are hosted, in step with the metadata: a partition that this broker comes to lead is loaded, one that
it leads no more is closed. Handlers hand requests over by group; what becomes of them is the state machine's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import uuid4

from flowstone.broker.coordinators.internal_logs import PartitionInternalLog
from flowstone.broker.loop.workers import Workers
from flowstone.cluster.decisions.configs import broker_config
from flowstone.cluster.decisions.partition_plans import DEFAULT_COUNT, NewTopic
from flowstone.cluster.decisions.placement import place_replicas
from flowstone.cluster.decisions.topic_changes import create_topics
from flowstone.cluster.decisions.topic_names import CONSUMER_OFFSETS
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.image.records import MetadataRecord, TopicRecord
from flowstone.cluster.metadata import Metadata
from flowstone.config import MIB, MINUTE_MS, BrokerConfig
from flowstone.coordinator.append_rounds import AppendRounds
from flowstone.coordinator.effects import Effects
from flowstone.coordinator.groups import record_format as group_records
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.coordinator.partitioning import partition_for
from flowstone.coordinator.replay_reports import ReplayReports
from flowstone.coordinator.runtime import Host, HostedShard, Token
from flowstone.errors import ApiError, ErrorCode
from flowstone.memory_budget import MemoryBudget
from flowstone.ports.clock import Clock
from flowstone.promise import Promise
from flowstone.replication.partitions import Partitions
from flowstone.types import TopicPartition

# A group is one record: a megabyte would be too little for some hundred members with long subscriptions.
OFFSETS_TOPIC_MESSAGE_BYTES_MAX = 16 * MIB

# A member's id begins with its client's, and must fit where ids are stored and sent, which takes 32 KiB.
MEMBER_NAME_LENGTH_MAX = 1024

# Groups whose shard is kept at hand: the same ones ask again and again. Not by long names: a stranger may make them up.
LOCATED_GROUPS_MAX = 4096
LOCATED_GROUP_LENGTH_MAX = 256

# A refused group may try again and again; the log tells of it this often.
REFUSAL_LOG_INTERVAL_S = 60.0

logger = logging.getLogger(__name__)

GroupCall = Callable[[GroupShard, int, Token], Effects[Any]]


class GroupCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        metadata: Metadata,
        partitions: Partitions,
        workers: Workers,
    ) -> None:
        self._config, self._metadata, self._partitions = config, metadata, partitions
        self._clock, self._workers = clock, workers
        self._waiting: set[Token] = set()
        self._waiting_max = config.max_parked_requests
        self.memory = MemoryBudget(config.group_memory_max_bytes, self._memory_refused)
        self._refusal_logged_s = -REFUSAL_LOG_INTERVAL_S
        group_config = _group_config(config)
        self._host = Host(
            clock=clock,
            codec=group_records,
            new_machine=lambda: GroupShard(group_config, _new_member_id, self.memory),
            load_turn=asyncio.Lock(),
            rounds=AppendRounds(),
            reports=ReplayReports(clock.monotonic),
        )
        self._shards: dict[int, HostedShard[GroupShard]] = {}
        # The shards of groups that were asked for, as long as no shard comes or goes.
        self._shards_by_group: dict[str, HostedShard[GroupShard]] = {}
        # In which leader epoch each is hosted: what was loaded in an earlier one may have been decided otherwise since.
        self._epochs: dict[int, int] = {}
        self._closed = False
        self._host_shards(metadata.image)
        metadata.on_change(self._follow)

    def close(self) -> None:
        """Lets go of everybody who waits: the broker stops."""
        self._closed = True
        for shard in self._shards.values():
            shard.close(ErrorCode.NOT_COORDINATOR)

    async def wait_loaded(self, timeout_s: float) -> None:
        """Returns when what is hosted now has been loaded, or has failed to; or when it has taken too long."""
        finished = asyncio.Event()
        loads = {shard.loading for shard in self._shards.values()}

        def loaded(load: asyncio.Future[None]) -> None:
            loads.discard(load)
            if not loads:
                finished.set()

        timer = self._clock.call_later(timeout_s, finished.set)
        for load in tuple(loads):
            load.add_done_callback(loaded)
        if loads:
            await finished.wait()
        timer.cancel()

    def _memory_refused(self) -> None:
        """Log that a group was refused because all groups together take too much memory, at most once a minute."""
        now_s = self._clock.monotonic()
        if now_s - self._refusal_logged_s >= REFUSAL_LOG_INTERVAL_S:
            self._refusal_logged_s = now_s
            logger.warning(
                "a group's member, assignment or offset was refused: all groups take %d MiB of memory and "
                "group.memory.max.bytes is %d MiB; raise it, or delete groups that nobody needs",
                self.memory.used_bytes // MIB,
                self.memory.limit_bytes // MIB,
            )

    # The topic

    def partition_of(self, group_id: str) -> TopicPartition | None:
        """Where the group's state is; None while the topic has not been made."""
        topic = self._metadata.image.topics.get(CONSUMER_OFFSETS)
        if topic is None:
            return None
        return TopicPartition(CONSUMER_OFFSETS, partition_for(group_id, len(topic.partitions)))

    async def create_topic(self) -> None:
        """Makes `__consumer_offsets`, as Kafka does when a coordinator is first asked for. ApiError if it cannot."""
        results = await self._metadata.change(
            lambda image: create_topics(
                image,
                [_offsets_topic(image, self._config)],
                broker_config(image, self._config),
                random_id,
                internal_allowed=True,
            )
        )
        if results[0].error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise ApiError(results[0].error, results[0].message or "")

    # Requests

    def request(self, group_id: str, call: GroupCall, token: Token | None = None, *, may_wait: bool = False) -> Token:
        """Hands a request to the group's shard; its response, or ApiError, comes with the promise: the one given.

        Of those that may wait for other members only so many are taken, so that the rest always gets through.
        """
        token = Promise() if token is None else token
        shard = self._shard_of(group_id)
        if shard is None:
            token.set_exception(ApiError(ErrorCode.NOT_COORDINATOR))
        elif may_wait and len(self._waiting) >= self._waiting_max:
            token.set_exception(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            shard.request(call, token)
        if may_wait and not token.done():
            self._waiting.add(token)
            token.add_done_callback(self._waiting.discard)
        return token

    def request_all(self, call: GroupCall) -> list[Token]:
        """Hands a request to every shard."""
        return [shard.request(call) for shard in self._shards.values()]

    def _shard_of(self, group_id: str) -> HostedShard[GroupShard] | None:
        shard = self._shards_by_group.get(group_id)
        if shard is None and (shard := self._find_shard(group_id)) is not None:
            if len(self._shards_by_group) >= LOCATED_GROUPS_MAX:
                self._shards_by_group.clear()
            if len(group_id) <= LOCATED_GROUP_LENGTH_MAX:
                self._shards_by_group[group_id] = shard
        return shard

    def _find_shard(self, group_id: str) -> HostedShard[GroupShard] | None:
        topic = self._metadata.image.topics.get(CONSUMER_OFFSETS)
        if topic is None:
            return None
        index = partition_for(group_id, len(topic.partitions))
        shard = self._shards.get(index)
        if shard is None and not self._closed:
            self._host_shards(self._metadata.image)  # a partition may open a while after its topic was made
            shard = self._shards.get(index)
        return shard

    # Following the metadata

    def _follow(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        if self._closed:
            return
        changed = dict.fromkeys(record.topic_id for record in records if isinstance(record, TopicRecord))
        gone = [
            topic_id for topic_id in changed if topic_id in before.topics_by_id and topic_id not in after.topics_by_id
        ]
        deleted = [before.topics_by_id[topic_id] for topic_id in gone]
        if any(topic.name == CONSUMER_OFFSETS for topic in deleted):
            for index in tuple(self._shards):
                self._unhost(index)
        if changed:
            self._shards_by_group.clear()
            self._host_shards(after)
        if deleted:
            self.remove_offsets(dict.fromkeys(partition for topic in deleted for partition in _partitions(topic)))

    def remove_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        """What groups have committed in these goes; nobody waits for it."""
        for shard in self._shards.values():
            shard.execute(lambda machine, now_ms: machine.remove_partitions(now_ms, partitions))

    def _host_shards(self, image: ClusterImage) -> None:
        """Loads what is led here and not hosted yet; closes what is led elsewhere, or was led before."""
        topic = image.topics.get(CONSUMER_OFFSETS)
        for topic_partition in _partitions(topic) if topic is not None else ():
            index, partition = topic_partition.partition, self._partitions.find(topic_partition)
            leads = partition is not None and partition.is_leader
            if index in self._shards and (
                partition is None or not leads or partition.leader_epoch != self._epochs[index]
            ):
                self._unhost(index)
            if partition is not None and leads and index not in self._shards:
                log = PartitionInternalLog(partition, self._workers)
                self._shards[index] = HostedShard(str(topic_partition), log, self._host)
                self._epochs[index] = partition.leader_epoch
                self._shards_by_group.clear()

    def _unhost(self, index: int) -> None:
        del self._epochs[index]
        self._shards_by_group.clear()
        self._shards.pop(index).close(ErrorCode.NOT_COORDINATOR)


def _partitions(topic: TopicImage) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in range(len(topic.partitions))]


def _offsets_topic(image: ClusterImage, config: BrokerConfig) -> NewTopic:
    """With a replica on a broker that is away, if it takes that one to have enough: it will be back."""
    count, factor = config.offsets_topic_num_partitions, config.offsets_topic_replication_factor
    racks = {broker.node_id: broker.rack for broker in image.brokers.values()}
    factor = min(factor, max(len(racks), 1))
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    if sum(not broker.is_fenced for broker in image.brokers.values()) < factor <= len(racks):
        placed = place_replicas(sorted(racks), count=count, replication_factor=factor, start=0, racks=racks)
        assignments, count, factor = tuple(enumerate(placed)), DEFAULT_COUNT, DEFAULT_COUNT
    return NewTopic(
        CONSUMER_OFFSETS,
        num_partitions=count,
        replication_factor=factor,
        assignments=assignments,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("max.message.bytes", str(OFFSETS_TOPIC_MESSAGE_BYTES_MAX)),
            ("segment.bytes", str(config.offsets_topic_segment_bytes)),
        ),
    )


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        session_timeout_min_ms=config.group_min_session_timeout_ms,
        session_timeout_max_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * MINUTE_MS,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )


def _new_member_id(name: str) -> str:
    """Kafka's form: the client's or the instance's id, and what makes it its own."""
    return f"{name[:MEMBER_NAME_LENGTH_MAX]}-{uuid4()}"
