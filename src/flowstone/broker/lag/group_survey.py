"""The state and lag of every group, consumer or share: on request, and every few seconds for metrics and the alarm.

Groups are read as any client reads them, through the coordinator's requests, so only committed state is shown. A survey
yields the event loop after every few partitions, and the pause before the next one is a multiple of its duration, so
that many groups cost a small share of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from typing import TYPE_CHECKING, Any

from flowstone.broker.lag.group_status import GroupMember, GroupStatus, PartitionLag
from flowstone.broker.lag.headroom_alarm import HeadroomAlarm
from flowstone.broker.lag.lag import Lags
from flowstone.broker.lag.share_status import ShareStatus
from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices, yield_to_loop
from flowstone.broker.requests.context import Services
from flowstone.coordinator.groups.classic.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    assigned_partitions,
    subscribed_topics,
)
from flowstone.coordinator.groups.consumer.messages import (
    CONSUMER,
    ConsumerGroupDescribed,
    ConsumerMemberDescribed,
)
from flowstone.coordinator.groups.consumer_records import Partition
from flowstone.coordinator.groups.messages import (
    CLASSIC,
    DescribedGroup,
    DescribedMember,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    ListGroupsRequest,
)
from flowstone.coordinator.groups.share.messages import DescribedShareGroup
from flowstone.coordinator.runtime import Token
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Timer
from flowstone.types import TopicPartition

if TYPE_CHECKING:
    from flowstone.broker.clustering.remote_offsets import RemoteOffsets

logger = logging.getLogger(__name__)

SAMPLE_INTERVAL_S = 5.0
# The pause between two surveys is at least so many times the duration of one, but no longer than the maximum below.
SAMPLE_PAUSE_FACTOR = 50
SAMPLE_INTERVAL_MAX_S = 60.0
# Groups requested together: each answer may wait until the next commits are on disk.
GROUPS_ASKED_AT_ONCE = 50
# Partitions examined in one time slice: about half a millisecond.
SLICE_PARTITIONS = 50


class GroupSurvey:
    def __init__(self, services: Services, remote_offsets: RemoteOffsets | None = None) -> None:
        """Survey the groups of this broker; `remote_offsets` is None if there is one broker."""
        self._services, self._clock = services, services.clock
        self.lags = Lags(services, remote_offsets)
        self._shares = ShareStatus(services, self.lags)
        self._alarm = HeadroomAlarm()
        self._timer: Timer | None = None
        self._sampling: asyncio.Task[None] | None = None
        # The survey under way or the last one, and the one that begins after it.
        self._surveying: asyncio.Task[Sequence[GroupStatus]] | None = None
        self._next: asyncio.Task[Sequence[GroupStatus]] | None = None
        self._listeners: list[Callable[[Sequence[GroupStatus]], None]] = []
        # The result of the last survey.
        self.latest: Sequence[GroupStatus] = ()

    def start(self) -> None:
        self._timer = self._clock.call_later(SAMPLE_INTERVAL_S, self._begin_sample)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Requests under way are answered soon, when the coordinator is closed.
        if self._sampling is not None:
            self._sampling.cancel()

    def on_survey(self, listener: Callable[[Sequence[GroupStatus]], None]) -> None:
        """Call `listener` with all groups after each survey, every few seconds."""
        self._listeners.append(listener)

    async def all_groups(self) -> Sequence[GroupStatus]:
        """Return the groups by name, without those whose coordinator is not here or is still loading.

        Callers that arrive during a survey share the next one, which sees everything done before their call: many calls
        cost at most two surveys.
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
        slices = TimeSlices(self._clock.monotonic)
        calls = self._services.groups.request_each(
            lambda shard, now_ms, token: shard.list_groups(now_ms, token, request)
        )
        tokens = [token async for token in slices.over(calls)]
        shards = [each for each in await _settle(tokens) if not isinstance(each, ApiError)]
        parts = [sorted([group.group_id for group in shard.groups]) async for shard in slices.over(shards)]
        names = [name async for name in slices.over(merge(*parts))]
        found = []
        for first in range(0, len(names), GROUPS_ASKED_AT_ONCE):
            asked = []
            for name in names[first : first + GROUPS_ASKED_AT_ONCE]:
                asked.append(self._ask(name))
                await yield_to_loop()
            found += [await self._told(tokens) for tokens in asked]
        return [group for group in found if group is not None]

    async def group(self, group_id: str) -> GroupStatus | None:
        """Return one group, or None if there is none of this name or its coordinator is not here or still loading."""
        return await self._told(self._ask(group_id))

    def _ask(self, group_id: str) -> Sequence[Token]:
        asked = FetchOffsetsRequest(group_id, with_pending=True)
        groups = self._services.groups
        return (
            groups.request(group_id, lambda shard, now_ms, token: shard.survey_group(now_ms, token, group_id)),
            groups.request(group_id, lambda shard, now_ms, token: shard.fetch_offsets(now_ms, token, asked)),
        )

    async def _told(self, tokens: Sequence[Token]) -> GroupStatus | None:
        described, fetched = await _settle(tokens)
        if isinstance(described, ApiError) or isinstance(fetched, ApiError):
            return None
        if described.error_code is not ErrorCode.NONE:
            return None
        if isinstance(described, ConsumerGroupDescribed):
            return await self._consumer_status(described, fetched)
        if isinstance(described, DescribedShareGroup):
            return await self._shares.of(described)
        return await self._status(described, fetched)

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
            partitions=await self._partitions(fetched, owners),
            rebalance_count=described.rebalance_count,
            rebalance_reason=described.rebalance_reason,
            rebalance_timestamp_ms=described.rebalance_timestamp_ms,
        )

    async def _consumer_status(self, group: ConsumerGroupDescribed, fetched: FetchOffsetsResponse) -> GroupStatus:
        members = tuple(_consumer_member(group.names, each) for each in group.members)
        owners = {partition: member.member_id for member in members for partition in member.partitions}
        return GroupStatus(
            group_id=group.group_id,
            state=group.state,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol=group.assignor,
            generation=group.group_epoch,
            topics=group.topics,
            members=members,
            partitions=await self._partitions(fetched, owners),
            rebalance_count=group.rebalance_count,
            rebalance_reason=group.rebalance_reason,
            rebalance_timestamp_ms=group.rebalance_timestamp_ms,
            type=CONSUMER,
            assignment_epoch=group.assignment_epoch,
            unsettled=group.unsettled,
        )

    async def _partitions(
        self, fetched: FetchOffsetsResponse, owners: Mapping[TopicPartition, str]
    ) -> tuple[PartitionLag, ...]:
        lags, offsets = [], fetched.offsets
        for count, topic_partition in enumerate(sorted(offsets.keys() | owners.keys() | fetched.pending.keys())):
            if count % SLICE_PARTITIONS == 0:
                await yield_to_loop()
            committed = offsets[topic_partition].offset if topic_partition in offsets else None
            lag = await self.lags.of(topic_partition, committed, owners.get(topic_partition))
            if lag is None:
                continue
            pending = fetched.pending.get(topic_partition)
            if pending is not None:
                lag = lag._replace(pending_offset=pending.offset, pending_producer_id=pending.producer_id)
            lags.append(lag)
        return tuple(lags)

    # Every few seconds

    def _begin_sample(self) -> None:
        self._sampling = asyncio.ensure_future(self._sample())

    async def _sample(self) -> None:
        begun_s = self._clock.monotonic()
        try:
            await self.look()
        except Exception:  # the task is not awaited, and the next survey may succeed
            logger.exception("the state of consumer groups could not be read")
        took_s = self._clock.monotonic() - begun_s
        delay_s = min(max(SAMPLE_INTERVAL_S, took_s * SAMPLE_PAUSE_FACTOR), SAMPLE_INTERVAL_MAX_S)
        self._timer = self._clock.call_later(delay_s, self._begin_sample)

    async def look(self) -> None:
        """Survey all groups for the metrics and listeners, and warn of groups whose headroom is low."""
        self.latest = await self.all_groups()
        self.lags.forget_unasked()
        await run_in_slices(self._alarm.look(self.latest), TimeSlices(self._clock.monotonic))
        for listener in self._listeners:
            listener(self.latest)


def _member(member: DescribedMember, is_consumer: bool) -> GroupMember:
    partitions = assigned_partitions(member.assignment) if is_consumer else ()
    return GroupMember(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, tuple(sorted(partitions))
    )


def _consumer_member(names: Mapping[bytes, str], member: ConsumerMemberDescribed) -> GroupMember:
    def named(partitions: Iterable[Partition]) -> tuple[TopicPartition, ...]:
        return tuple(sorted(TopicPartition(names[each], index) for each, index in partitions if each in names))

    return GroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        named(member.assigned),
        epoch=member.member_epoch,
        state=member.state,
        revoking=named(member.revoking),
        waiting=named(member.target - member.assigned),
        protocol=CLASSIC if member.is_classic else CONSUMER,
        regex=member.regex,
    )


async def _settle(tokens: Sequence[Token]) -> list[Any]:
    """Wait for the tokens; return their responses, with the ApiError in place of a failed one."""
    outcomes: list[Any] = []
    for token in tokens:  # all are under way already; gathering them would make a task of each
        try:
            outcomes.append(await token)
        except ApiError as error:
            outcomes.append(error)
    return outcomes
