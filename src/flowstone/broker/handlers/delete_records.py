"""DeleteRecords, versions 0 to 2: a partition's log starts later from now on.

Offset -1 means everything that is committed. The new start is on disk before the answer; what lies before it is gone
for readers at once, and from the disk when whole segments lie before it. Followers take the start over with what they
fetch next; unlike Kafka's, the answer does not wait for them.
"""

from __future__ import annotations

from flowstone.broker.context import RequestContext, Services
from flowstone.broker.leaders import find_led
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
)

EVERYTHING = -1
NO_OFFSET = -1


async def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    topics = []
    for topic in request.topics:
        partitions = [
            await _delete(services, topic.name, each.partition_index, each.offset) for each in topic.partitions
        ]
        topics.append(DeleteRecordsResponseTopic(name=topic.name, partitions=partitions))
    return DeleteRecordsResponse(topics=topics)


async def _delete(services: Services, topic: str, index: int, offset: int) -> DeleteRecordsResponsePartition:
    result = DeleteRecordsResponsePartition(partition_index=index, low_watermark=NO_OFFSET)
    try:
        partition = find_led(services, topic, index)
        partition.check_serving()
        if "delete" not in partition.log.config.cleanup_policy:
            raise ApiError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted")
        end = partition.high_watermark.offset
        before = end if offset == EVERYTHING else offset
        if not 0 <= before <= end:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        try:
            await services.logs.delete_records_before(partition.log, before)
        except StorageFault as fault:
            partition.fail(fault)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from fault
        result.low_watermark = partition.log.log_start_offset
    except ApiError as error:
        result.error_code = error.code
    return result
