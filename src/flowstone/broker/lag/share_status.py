"""The state of a share group as the survey of groups shows it, next to consumer groups.

A partition's `committed_offset` is the group's start offset: everything before is finished. Its lag counts what is not
finished from there on, and its `lag_seconds` is the age of the oldest record that is not finished. `in_flight` counts
the records that members have locked; only the broker that leads the partition knows it.
"""

from __future__ import annotations

from flowstone.broker.coordinators.share.group_states import GroupStates
from flowstone.broker.lag.group_status import SHARE, GroupMember, GroupStatus, PartitionLag
from flowstone.broker.lag.lag import Lags
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.requests.context import Services
from flowstone.coordinator.groups.share.messages import ASSIGNOR_NAME, DescribedShareGroup
from flowstone.coordinator.share.messages import StateSummary
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition


class ShareStatus:
    def __init__(self, services: Services, lags: Lags) -> None:
        self._services, self._lags = services, lags

    async def of(self, group: DescribedShareGroup) -> GroupStatus:
        members = tuple(
            GroupMember(
                each.member_id,
                None,
                each.client_id,
                each.client_host,
                tuple(TopicPartition(name, index) for _, name, indexes in each.assignment for index in indexes),
                epoch=each.member_epoch,
                protocol=SHARE,
            )
            for each in group.members
        )
        return GroupStatus(
            group_id=group.group_id,
            state=group.state,
            protocol_type=SHARE,
            protocol=ASSIGNOR_NAME,
            generation=group.group_epoch,
            topics=tuple(sorted({topic for each in group.members for topic in each.subscribed_topics})),
            members=members,
            partitions=await self._partitions(group.group_id),
            rebalance_count=0,
            rebalance_reason="",
            rebalance_timestamp_ms=-1,
            type=SHARE,
            assignment_epoch=group.assignment_epoch,
        )

    async def _partitions(self, group_id: str) -> tuple[PartitionLag, ...]:
        services = self._services
        try:
            summaries = await GroupStates(services.groups, services.share_states).summaries(group_id, None)
        except ApiError:
            return ()  # the coordinator is moving
        found = []
        for key, summary in summaries.items():
            await yield_to_loop()
            topic = services.metadata.image.topics_by_id.get(key.topic_id)
            if topic is not None and summary.error_code is ErrorCode.NONE:
                lag = await self._partition(key, TopicPartition(topic.name, key.partition), summary)
                found += [] if lag is None else [lag]
        return tuple(sorted(found))

    async def _partition(self, key: ShareKey, place: TopicPartition, summary: StateSummary) -> PartitionLag | None:
        start = summary.start_offset if summary.start_offset >= 0 else None
        status = await self._lags.of(place, start, None)
        if status is None:
            return None
        led = self._services.sharing.find(key)
        in_flight = None if led is None or led.machine is None else sum(led.machine.in_flight.values())
        status = status._replace(in_flight=in_flight)
        if status.lag is None or summary.delivery_complete_count < 0:
            return status
        lag = max(status.lag - summary.delivery_complete_count, 0)
        return status._replace(lag=lag, lag_seconds=status.lag_seconds if lag else 0.0)
