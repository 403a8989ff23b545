"""DeleteRecords, versions 0 to 2: move the start of a partition's log to a later offset.

Offset -1 means everything that is committed. The new start is on disk before the response; the records before it are
invisible to readers at once, and whole segments before it are deleted. The response waits, up to the request's timeout,
until the logs of all live replicas start there: a follower that becomes leader must not show deleted records again.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.broker.clustering.log_starts import low_watermark
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.partition_lookup import find_led
from flowstone.errors import ApiError, ErrorCode
from flowstone.replication.partition import Partition
from flowstone.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
)

EVERYTHING = -1
NO_OFFSET = -1


class _Deletion(NamedTuple):
    partition: Partition
    log_start_offset: int
    result: DeleteRecordsResponsePartition


async def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    topics, deletions = [], []
    slices = TimeSlices(services.clock.monotonic)
    for topic in request.topics:
        results = []
        for each in topic.partitions:
            result = DeleteRecordsResponsePartition(partition_index=each.partition_index, low_watermark=NO_OFFSET)
            try:
                deletions.append(await _delete(services, topic.name, each.offset, result))
            except ApiError as error:
                result.error_code = error.code
            results.append(result)
            await slices.yield_if_due()
        topics.append(DeleteRecordsResponseTopic(name=topic.name, partitions=results))
    await _wait(services, deletions, request.timeout_ms)
    return DeleteRecordsResponse(topics=topics)


async def _delete(services: Services, topic: str, offset: int, result: DeleteRecordsResponsePartition) -> _Deletion:
    """Move the log start of a partition that this broker leads."""
    partition = find_led(services, topic, result.partition_index)
    partition.local.check_serving()
    if "delete" not in partition.log.config.cleanup_policy:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted")
    end = partition.high_watermark.offset
    before = end if offset == EVERYTHING else offset
    if not 0 <= before <= end:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    await services.logs.delete_records_before(partition.log, before)
    partition.log_start_moved()
    return _Deletion(partition, before, result)


async def _wait(services: Services, deletions: list[_Deletion], timeout_ms: int) -> None:
    """Wait for the followers of all partitions at the same time."""
    slices = TimeSlices(services.clock.monotonic)
    waits = [
        services.log_starts.wait(services, partition, offset, timeout_ms)
        async for partition, offset, _ in slices.over(deletions)
    ]
    for wait, (partition, _, result) in zip(waits, deletions, strict=True):
        result.error_code = await wait
        if result.error_code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
            result.low_watermark = low_watermark(services, partition)
        await slices.yield_if_due()
