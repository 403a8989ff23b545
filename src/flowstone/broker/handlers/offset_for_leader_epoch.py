"""OffsetForLeaderEpoch, versions 2 to 4: where a leader epoch ended, by which clients find out that a log was cut."""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.partition_lookup import find_led
from flowstone.errors import ApiError
from flowstone.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
    OffsetForLeaderEpochResponseTopic,
)


async def handle(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    topics = []
    slices = TimeSlices(services.clock.monotonic)
    for topic in request.topics:
        partitions = [_answer(services, topic.topic, wanted) async for wanted in slices.over(topic.partitions)]
        topics.append(OffsetForLeaderEpochResponseTopic(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(
    services: Services, topic: str, wanted: OffsetForLeaderEpochRequestPartition
) -> OffsetForLeaderEpochResponsePartition:
    result = OffsetForLeaderEpochResponsePartition(partition=wanted.partition)
    try:
        partition = find_led(services, topic, wanted.partition)
        partition.local.check_serving()
        partition.check_epoch(wanted.current_leader_epoch)
        if wanted.leader_epoch == partition.leader_epoch:
            result.leader_epoch, result.end_offset = wanted.leader_epoch, partition.log.log_end_offset
        else:
            result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(wanted.leader_epoch)
    except ApiError as error:
        result.error_code = error.code
    return result
