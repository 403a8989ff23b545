"""DescribeShareGroupOffsets, versions 0 and 1: where share groups are, and since version 1 how far behind they are.

The lag counts the records from the start offset to the end of the partition that are not accepted or archived; it is -1
while the group has not fetched from the partition. A partition without state, and one that does not exist, has the
start offset -1 and no error. In a cluster the ends of partitions that other brokers lead may be five seconds old.
"""

from __future__ import annotations

from flowstone.broker.coordinators.share.group_states import GroupStates
from flowstone.broker.handlers.share.share_feature import check_share_groups
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.coordinator.share.messages import StateSummary
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

NO_LAG = -1


async def handle(services: Services, context: RequestContext, request: DescribeShareGroupOffsetsRequest) -> Message:
    check_share_groups(services)
    slices = TimeSlices(services.clock.monotonic)
    groups = [await _group(services, each, slices) async for each in slices.over(request.groups)]
    elements = len(groups) + sum(len(topic.partitions) for group in groups for topic in group.topics)
    return await encode_if_long(services, context, DescribeShareGroupOffsetsResponse(groups=groups), elements, slices)


async def _group(
    services: Services, asked: DescribeShareGroupOffsetsRequestGroup, slices: TimeSlices
) -> DescribeShareGroupOffsetsResponseGroup:
    image, wanted = services.metadata.image, None
    if asked.topics is not None:
        known = {topic.topic_name: image.topics.get(topic.topic_name) for topic in asked.topics}
        wanted = {
            found.topic_id: tuple(dict.fromkeys(topic.partitions))
            for topic in asked.topics
            if (found := known[topic.topic_name]) is not None
        }
    try:
        summaries = await GroupStates(services.groups, services.share_states).summaries(asked.group_id, wanted)
    except ApiError as error:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=asked.group_id, error_code=error.code, error_message=error.message or None
        )
    partitions: dict[tuple[bytes, str], list[DescribeShareGroupOffsetsResponsePartition]] = {}
    async for key in slices.over(summaries):
        named = services.metadata.image.topics_by_id.get(key.topic_id)
        if named is None:
            continue
        place = TopicPartition(named.name, key.partition)
        described = await _partition(services, place, summaries[key])
        partitions.setdefault((key.topic_id, named.name), []).append(described)
    topics = [
        DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id, partitions=entries)
        for (topic_id, name), entries in partitions.items()
    ]
    return DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, topics=topics)


async def _partition(
    services: Services, place: TopicPartition, summary: StateSummary
) -> DescribeShareGroupOffsetsResponsePartition:
    if summary.error_code is not ErrorCode.NONE:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=place.partition,
            start_offset=-1,
            error_code=summary.error_code,
            error_message=summary.error_message,
        )
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=place.partition,
        start_offset=summary.start_offset,
        leader_epoch=summary.leader_epoch,
        lag=await lag_of(services, place, summary),
    )


async def lag_of(services: Services, place: TopicPartition, summary: StateSummary) -> int:
    """Return how many records the group has not finished in a partition, or -1 if that is unknown."""
    if summary.start_offset < 0 or summary.delivery_complete_count < 0:
        return NO_LAG
    end_offset = await _end_offset(services, place)
    return NO_LAG if end_offset is None else max(end_offset - summary.start_offset - summary.delivery_complete_count, 0)


async def _end_offset(services: Services, place: TopicPartition) -> int | None:
    partition = services.partitions.find(place)
    if partition is not None and partition.is_leader:
        return partition.high_watermark.offset
    if services.cluster is None:
        return None
    bounds = await services.cluster.remote_offsets.bounds(place)
    return None if bounds is None else bounds.high_watermark
