"""The group coordinator of this broker: consumer groups and their offsets, in `__consumer_offsets`.

Owns what concerns all of the broker's shards together: how many requests wait for other members, how much memory groups
take, which offsets are removed when a topic is deleted. `CoordinatorHost` decides where shards are hosted, and the
state machine handles requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from flowstone.broker.coordinators.coordinator_host import CoordinatorHost, HostServices
from flowstone.broker.coordinators.group_settings import GroupSettingsSource
from flowstone.broker.coordinators.internal_topics import offsets_topic
from flowstone.broker.coordinators.refusal_log import RefusalLog
from flowstone.broker.coordinators.regex_resolution import RegexResolution
from flowstone.broker.coordinators.target_computation import TargetComputation
from flowstone.broker.loop.workers import Workers
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.cluster.image.records import MetadataRecord, PartitionsAdded, TopicCreated, TopicDeleted, TopicRecord
from flowstone.cluster.metadata import Metadata
from flowstone.config import MINUTE_MS, BrokerConfig
from flowstone.coordinator.effects import Effects, TransactionalProducer
from flowstone.coordinator.groups import record_format as group_records
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.consumer.regexes import ResolveRegexes, resolved
from flowstone.coordinator.groups.consumer.target import ComputeTargets
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.coordinator.groups.share.messages import InitializeStates
from flowstone.coordinator.groups.topics import GroupTopic
from flowstone.coordinator.groups.transactional_commits import EndTransactionRequest
from flowstone.coordinator.runtime import HostedShard, Token
from flowstone.errors import ApiError, ErrorCode
from flowstone.memory_budget import MemoryBudget
from flowstone.ports.clock import Clock
from flowstone.promise import Promise
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition
from flowstone.wire.end_markers import EndMarker

# A member's id begins with its client's, and must fit where ids are stored and sent, which takes 32 KiB.
MEMBER_NAME_LENGTH_MAX = 1024


# Why a marker is refused for good. Everything else passes: the shard is loaded again, here or elsewhere.
_MARKER_ERRORS = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


GroupCall = Callable[[GroupShard, int, Token], Effects[Any]]


class GroupCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        metadata: Metadata,
        partitions: Partitions,
        workers: Workers,
        steady_time_ms: Callable[[], int] | None = None,
    ) -> None:
        """Create the coordinator. `steady_time_ms` decides when offsets expire; by default the clock does."""
        self._waiting: set[Token] = set()
        self._waiting_max = config.max_parked_requests
        refusals = RefusalLog(
            "a group's member, assignment or offset was refused: all groups",
            "group.memory.max.bytes",
            "delete groups that nobody needs",
            clock.monotonic,
        )
        self.memory = MemoryBudget(config.group_memory_max_bytes, refusals.refused)
        self.settings = GroupSettingsSource(metadata, config)
        self._closed = False
        # Begins a task of a share group; set once the share coordinator exists.
        self.initialize_states: Callable[[HostedShard[GroupShard], InitializeStates], None] | None = None
        self._regexes = RegexResolution(metadata, clock)
        self._targets = TargetComputation(clock)
        group_config = _group_config(config)
        topics = self._topics = _Topics(metadata)
        self._host = CoordinatorHost(
            offsets_topic(config),
            group_records,
            lambda _leader_epoch: GroupShard(
                group_config, _new_member_id, self.memory, topics, self.settings.of, steady_time_ms
            ),
            HostServices(config, clock, metadata, partitions, workers),
            self._perform,
        )
        metadata.on_change(self._follow)

    def close(self) -> None:
        """Refuse all waiting and further requests, because the broker stops."""
        self._closed = True
        self._regexes.close()
        self._targets.close()
        self._host.close()

    async def wait_loaded(self, timeout_s: float) -> None:
        """Return when each shard hosted now has been loaded or has failed to load, or after `timeout_s`."""
        await self._host.wait_loaded(timeout_s)

    def partition_of(self, group_id: str) -> TopicPartition | None:
        """Return the partition that has the group's state, or None while the topic does not exist."""
        return self._host.partition_of(group_id)

    def shard_of(self, group_id: str) -> HostedShard[GroupShard] | None:
        """Return the shard that has the group's state, or None if this broker does not lead its partition."""
        return self._host.shard_of(group_id)

    async def create_topic(self) -> None:
        """Create `__consumer_offsets` unless it exists. Raises ApiError if that fails."""
        await self._host.create_topic()

    def request(self, group_id: str, call: GroupCall, token: Token | None = None, *, may_wait: bool = False) -> Token:
        """Pass a request to the group's shard; return the promise of its response, `token` if given.

        The promise raises ApiError if the request fails. The number of requests that may wait for other members is
        limited, so that the others are always accepted.
        """
        shard = self._host.shard_of(group_id) if may_wait else None
        if shard is None:
            return self._host.request(group_id, call, token)
        token = Promise() if token is None else token
        if len(self._waiting) >= self._waiting_max:
            token.set_exception(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return token
        shard.request(call, token)
        if not token.is_done:
            self._waiting.add(token)
            token.add_done_callback(self._waiting.discard)
        return token

    def write_marker(
        self,
        index: int,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        is_commit: bool,
        transaction_version: int,
    ) -> Promise[None]:
        """End a producer's transaction in a partition of `__consumer_offsets`.

        The promise is resolved once the marker is committed and commits and fetches see the result. It fails with the
        log's ApiError if the producer or its coordinator has been replaced, and with NOT_LEADER_OR_FOLLOWER if the
        marker must be sent again, because the partition is being loaded or led elsewhere.
        """
        written: Promise[None] = Promise()
        shard = self._host.shard_at(index)
        if shard is None:
            written.set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return written
        request = EndTransactionRequest(
            TransactionalProducer(producer_id, producer_epoch),
            EndMarker(is_commit, coordinator_epoch),
            transaction_version,
        )
        token = shard.request(lambda machine, now_ms, token: machine.end_transaction(now_ms, token, request))
        token.add_done_callback(partial(_settle_marker, written))
        return written

    def request_all(self, call: GroupCall) -> list[Token]:
        """Pass a request to every shard; return the promises of their responses."""
        return self._host.request_all(call)

    def request_each(self, call: GroupCall) -> Iterator[Token]:
        """Pass a request to one shard after the other as the iterator advances; yield their promises."""
        return self._host.request_each(call)

    def _perform(
        self, shard: HostedShard[GroupShard], task: InitializeStates | ResolveRegexes | ComputeTargets
    ) -> None:
        if isinstance(task, ResolveRegexes):
            self._regexes.begin(
                task,
                lambda group_id, found: shard.execute(
                    lambda machine, now_ms: machine.task_done(now_ms, group_id, partial(resolved, found=found))
                ),
            )
        elif isinstance(task, ComputeTargets):
            self._targets.begin(task, shard)
        elif self.initialize_states is None:
            shard.execute(lambda machine, now_ms: machine.share_states_failed(now_ms, task.group_id))
        else:
            self.initialize_states(shard, task)

    def _follow(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        """Remove the offsets and the share state of topics that were deleted."""
        if self._closed:
            return
        if any(isinstance(record, TopicCreated | TopicDeleted | PartitionsAdded) for record in records):
            self._topics.version += 1
        changed = dict.fromkeys(record.topic_id for record in records if isinstance(record, TopicRecord))
        deleted = [
            before.topics_by_id[topic_id]
            for topic_id in changed
            if topic_id in before.topics_by_id and topic_id not in after.topics_by_id
        ]
        if deleted:
            topic_ids = frozenset(topic.topic_id for topic in deleted)
            self._host.execute_all(lambda machine, now_ms: machine.remove_topics(now_ms, topic_ids))
            self.remove_offsets(dict.fromkeys(partition for topic in deleted for partition in _partitions(topic)))

    def remove_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove the offsets that groups have committed in these partitions, without waiting."""
        self._host.execute_all(lambda machine, now_ms: machine.remove_partitions(now_ms, partitions))


class _Topics:
    """The topics in the newest metadata, for groups."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        # Grows with every topic that is created, deleted or gets partitions.
        self.version = 0

    def partition_count(self, name: str) -> int:
        topic = self._metadata.image.topics.get(name)
        return 0 if topic is None else len(topic.partitions)

    def find(self, name: str) -> GroupTopic | None:
        topic = self._metadata.image.topics.get(name)
        return None if topic is None else GroupTopic(name, topic.topic_id, len(topic.partitions))

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._metadata.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name


def _settle_marker(written: Promise[None], token: Token) -> None:
    if written.is_done:  # it was cancelled
        return
    error = token.error
    if isinstance(error, ApiError) and error.code not in _MARKER_ERRORS:
        error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error))
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)


def _partitions(topic: TopicImage) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in range(len(topic.partitions))]


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        session_timeout_min_ms=config.group_min_session_timeout_ms,
        session_timeout_max_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        consumer_group_max_size=config.group_consumer_max_size,
        consumer_assignors=config.group_consumer_assignors,
        consumer_migration_policy=config.group_consumer_migration_policy,
        consumer_regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        share_group_max_size=config.group_share_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * MINUTE_MS,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )


def _new_member_id(name: str) -> str:
    """Return a new member id in Kafka's form: the client's or the instance's id, and a random id."""
    return f"{name[:MEMBER_NAME_LENGTH_MAX]}-{uuid4()}"
