"""What every group is doing and how far behind it is: when asked, and every few seconds for metrics and the alarm.

Groups are read as any client reads them, through the coordinator's requests: what is told is committed. The loop is
given to others after every few partitions, and the next look waits for a multiple of what this one took, so that many
groups cost a small share of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowstone.broker.disks.append_rates import AppendRates
from flowstone.broker.lag.group_status import GroupMember, GroupStatus, PartitionLag
from flowstone.broker.lag.headroom_alarm import HeadroomAlarm
from flowstone.broker.lag.lag import headroom_s, is_low
from flowstone.broker.lag.next_unread import UnreadTimestamps, unread_segment
from flowstone.broker.loop.time_slices import others_turn
from flowstone.broker.requests.context import Services
from flowstone.coordinator.groups.classic.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    assigned_partitions,
    subscribed_topics,
)
from flowstone.coordinator.groups.messages import (
    CommittedOffset,
    DescribedGroup,
    DescribedMember,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    ListGroupsRequest,
)
from flowstone.coordinator.runtime import Token
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import Timer
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition

if TYPE_CHECKING:
    from flowstone.broker.clustering.remote_offsets import Bounds, Elsewhere

logger = logging.getLogger(__name__)

SAMPLE_INTERVAL_S = 5.0
# The time between two looks is at least so many times what one takes, but no longer than this.
SAMPLE_PAUSE_FACTOR = 50
SAMPLE_INTERVAL_MAX_S = 60.0
# Of so many groups the answers are waited for together: each may be held until the next commits are on disk.
GROUPS_ASKED_AT_ONCE = 50
# How many partitions are looked at before others get their turn: about half a millisecond.
SLICE_PARTITIONS = 50


class GroupSurvey:
    def __init__(self, services: Services, elsewhere: Elsewhere | None = None) -> None:
        """`elsewhere`: None where there is one broker."""
        self._elsewhere = elsewhere
        self._services, self._clock = services, services.clock
        self._rates = AppendRates()
        self._timestamps = UnreadTimestamps(services.workers)
        self._warning_s = services.config.group_headroom_warning_ms / 1000
        self._alarm = HeadroomAlarm()
        self._timer: Timer | None = None
        self._sampling: asyncio.Task[None] | None = None
        # The look under way or the last one, and the one that begins after it.
        self._surveying: asyncio.Task[Sequence[GroupStatus]] | None = None
        self._next: asyncio.Task[Sequence[GroupStatus]] | None = None
        self._look_listeners: list[Callable[[Sequence[GroupStatus]], None]] = []
        # As of the last look.
        self.latest: Sequence[GroupStatus] = ()

    def start(self) -> None:
        self._timer = self._clock.call_later(SAMPLE_INTERVAL_S, self._begin_sample)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Who has asked gets an answer: it comes soon, once the coordinator is closed.
        if self._sampling is not None:
            self._sampling.cancel()

    def on_look(self, listener: Callable[[Sequence[GroupStatus]], None]) -> None:
        """Have `listener` called with all groups after each look, every few seconds."""
        self._look_listeners.append(listener)

    async def all_groups(self) -> Sequence[GroupStatus]:
        """By name. Groups whose coordinator is not here, or is still loading, are left out.

        Those who ask while a look is under way share the next one, which knows of all that was done before they asked:
        many cost no more than two.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._survey_after(self._surveying))
        return await asyncio.shield(self._next)

    async def _survey_after(self, last: asyncio.Task[Sequence[GroupStatus]] | None) -> Sequence[GroupStatus]:
        if last is not None:
            await asyncio.wait([last])
        self._surveying, self._next = self._next, None
        return await self._survey()

    async def _survey(self) -> Sequence[GroupStatus]:
        request = ListGroupsRequest()
        tokens = self._services.groups.request_all(
            lambda shard, now_ms, token: shard.list_groups(now_ms, token, request)
        )
        shards = [each for each in await _settle(tokens) if not isinstance(each, ApiError)]
        names = sorted(group.group_id for shard in shards for group in shard.groups)
        found = []
        for first in range(0, len(names), GROUPS_ASKED_AT_ONCE):
            asked = []
            for name in names[first : first + GROUPS_ASKED_AT_ONCE]:
                asked.append(self._ask(name))
                await others_turn()
            found += [await self._told(tokens) for tokens in asked]
        return [group for group in found if group is not None]

    async def group(self, group_id: str) -> GroupStatus | None:
        """None if there is no such group, or its coordinator is not here or still loading."""
        return await self._told(self._ask(group_id))

    def _ask(self, group_id: str) -> Sequence[Token]:
        asked = FetchOffsetsRequest(group_id)
        groups = self._services.groups
        return (
            groups.request(group_id, lambda shard, now_ms, token: shard.describe_group(now_ms, token, group_id)),
            groups.request(group_id, lambda shard, now_ms, token: shard.fetch_offsets(now_ms, token, asked)),
        )

    async def _told(self, tokens: Sequence[Token]) -> GroupStatus | None:
        described, fetched = await _settle(tokens)
        if isinstance(described, ApiError) or isinstance(fetched, ApiError):
            return None
        if described.error_code is not ErrorCode.NONE:
            return None
        return await self._status(described, fetched)

    def append_rate(self, log: PartitionLog) -> float:
        """Bytes per second; 0 for a log that nobody has asked about for a while."""
        return self._rates.of(log, self._clock.monotonic())

    # One group

    async def _status(self, described: DescribedGroup, fetched: FetchOffsetsResponse) -> GroupStatus:
        is_consumer = described.protocol_type == CONSUMER_PROTOCOL_TYPE
        members = tuple(_member(each, is_consumer) for each in described.members)
        topics = {topic for each in described.members for topic in subscribed_topics(each.metadata) or ()}
        owners = {partition: member.member_id for member in members for partition in member.partitions}
        return GroupStatus(
            group_id=described.group_id,
            state=described.state,
            protocol_type=described.protocol_type,
            protocol=described.protocol,
            generation=described.generation,
            topics=tuple(sorted(topics)) if is_consumer else (),
            members=members,
            partitions=await self._partitions(fetched.offsets, owners),
            rebalance_count=described.rebalance_count,
            rebalance_reason=described.rebalance_reason,
            rebalance_timestamp_ms=described.rebalance_timestamp_ms,
        )

    async def _partitions(
        self, offsets: Mapping[TopicPartition, CommittedOffset], owners: Mapping[TopicPartition, str]
    ) -> tuple[PartitionLag, ...]:
        lags = []
        for count, topic_partition in enumerate(sorted(offsets.keys() | owners.keys())):
            if count % SLICE_PARTITIONS == 0:
                await others_turn()
            committed = offsets[topic_partition].offset if topic_partition in offsets else None
            lag = await self._lag(topic_partition, committed, owners.get(topic_partition))
            if lag is not None:
                lags.append(lag)
        return tuple(lags)

    async def _lag(self, where: TopicPartition, committed: int | None, owner: str | None) -> PartitionLag | None:
        """None if nothing is known of the partition."""
        partition = self._services.partitions.find(where)
        if partition is None:
            bounds = await self._elsewhere.bounds(where) if self._elsewhere is not None else None
            return _lag_elsewhere(where, committed, owner, bounds) if bounds is not None else None
        rate = self.append_rate(partition.log)
        start, end = partition.log.log_start_offset, partition.high_watermark.offset
        lag = lag_seconds = headroom_seconds = None
        lost, growing_seconds = 0, 0.0
        if committed is not None:
            lag, lost = max(end - committed, 0), max(start - committed, 0)
            lag_seconds = await self._age_s(partition, max(committed, start)) if lag else 0.0
            if lost:
                headroom_seconds = 0.0
            elif lag:
                headroom_seconds, growing_seconds = await self._headroom_s(partition, committed, rate)
        return PartitionLag(
            topic=where.topic,
            partition=where.partition,
            committed_offset=committed,
            log_start_offset=start,
            high_watermark=end,
            lag=lag,
            lost=lost,
            lag_seconds=lag_seconds,
            headroom_seconds=headroom_seconds,
            is_headroom_low=is_low(headroom_seconds, self._warning_s, partition.log.config, rate),
            member_id=owner,
            growing_seconds=growing_seconds,
        )

    async def _age_s(self, partition: Partition, offset: int) -> float | None:
        timestamp_ms = await self._timestamps.of(partition, offset)
        return max(self._clock.time_ms() - timestamp_ms, 0) / 1000 if timestamp_ms is not None else None

    async def _headroom_s(
        self, partition: Partition, offset: int, rate_bytes_per_s: float
    ) -> tuple[float | None, float]:
        """Return the headroom, and how much of it is the time until the record's segment is sealed."""
        now_ms = self._clock.time_ms()
        try:
            segment = await unread_segment(self._services.workers, partition, offset, rate_bytes_per_s, now_ms)
        except ApiError:  # the partition is offline: nothing is read there, and nothing deleted
            return None, 0.0
        left_s = headroom_s(segment, partition.log.config, rate_bytes_per_s, now_ms)
        return (round(left_s, 3), round(segment.growing_s, 3) if left_s else 0.0) if left_s is not None else (None, 0.0)

    # Every few seconds

    def _begin_sample(self) -> None:
        self._sampling = asyncio.ensure_future(self._sample())

    async def _sample(self) -> None:
        begun_s = self._clock.monotonic()
        try:
            await self.look()
        except Exception:  # nobody awaits this task, and the next look may do better
            logger.exception("consumer groups could not be looked at")
        took_s = self._clock.monotonic() - begun_s
        delay_s = min(max(SAMPLE_INTERVAL_S, took_s * SAMPLE_PAUSE_FACTOR), SAMPLE_INTERVAL_MAX_S)
        self._timer = self._clock.call_later(delay_s, self._begin_sample)

    async def look(self) -> None:
        """Takes the sample that metrics show, and warns where something is wrong."""
        self.latest = await self.all_groups()
        self._rates.forget_unasked()
        self._timestamps.forget_unasked()
        self._alarm.look(self.latest)
        for listener in self._look_listeners:
            listener(self.latest)


def _lag_elsewhere(where: TopicPartition, committed: int | None, owner: str | None, bounds: Bounds) -> PartitionLag:
    """In records: how old the next unread one is, and when it goes, only who has the log can tell."""
    start, end = bounds
    lag, lost = None, 0
    if committed is not None:
        lag, lost = max(end - committed, 0), max(start - committed, 0)
    return PartitionLag(
        topic=where.topic,
        partition=where.partition,
        committed_offset=committed,
        log_start_offset=start,
        high_watermark=end,
        lag=lag,
        lost=lost,
        lag_seconds=0.0 if lag == 0 else None,
        headroom_seconds=0.0 if lost else None,
        member_id=owner,
    )


def _member(member: DescribedMember, is_consumer: bool) -> GroupMember:
    partitions = assigned_partitions(member.assignment) if is_consumer else ()
    return GroupMember(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, tuple(sorted(partitions))
    )


async def _settle(tokens: Sequence[Token]) -> list[Any]:
    """The responses, and ApiError where there is none."""
    outcomes: list[Any] = []
    for token in tokens:  # all are under way already; gathering them would make a task of each
        try:
            outcomes.append(await token)
        except ApiError as error:
            outcomes.append(error)
    return outcomes
