"""ListOffsets, versions 1 to 11: find a partition's first offset, its end, or the first offset at or after a time.

Special times: -1 the end of what the client may see, -2 the start, -3 the record with the largest timestamp, -4 the
start of what is on local disk (the same as -2 here), -5 and -6 the ends of tiered storage (there is none: no offset).

A consumer with isolation level read_committed sees up to the last stable offset, another one up to the high watermark,
a follower up to the end of the log. A record at or beyond that end is not found by its time.

Only leaders answer. A new leader may not know yet how far the previous one had committed. Until it does, it refuses
to return the end, which would otherwise move backwards (KIP-207).
"""

from __future__ import annotations

from functools import partial

from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.partition_lookup import find_led
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.timestamps import first_record_at
from flowstone.log.segments.cached_reads import LogSlice
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader, consumer
from flowstone.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
# The first version that supports a special time; those not listed are in every version.
_FIRST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_OFFSET_NOT_AVAILABLE_SINCE_VERSION = 5
NO_TIMESTAMP = -1
NO_OFFSET = -1
CONSUMER_REPLICA_ID = -1


async def handle(services: Services, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    topics = []
    asked: set[tuple[str, int]] = set()
    reader = consumer(request.isolation_level) if request.replica_id == CONSUMER_REPLICA_ID else Reader.REPLICA
    slices = TimeSlices(services.clock.monotonic)
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            is_repeated = (topic.name, wanted.partition_index) in asked
            asked.add((topic.name, wanted.partition_index))
            partitions.append(await _answer(services, context.api_version, reader, topic.name, wanted, is_repeated))
            await slices.yield_if_due()
        topics.append(ListOffsetsResponseTopic(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


async def _answer(
    services: Services,
    version: int,
    reader: Reader,
    topic: str,
    wanted: ListOffsetsRequestPartition,
    is_repeated: bool,
) -> ListOffsetsResponsePartition:
    result = ListOffsetsResponsePartition(partition_index=wanted.partition_index)
    try:
        if is_repeated:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a partition is requested twice")
        partition = find_led(services, topic, wanted.partition_index)
        partition.local.check_serving()
        partition.check_epoch(wanted.current_leader_epoch)
        if version < _FIRST_VERSION.get(wanted.timestamp, 0) or wanted.timestamp < EARLIEST_PENDING_UPLOAD:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        await _look_up(services, partition, reader, wanted.timestamp, result)
        is_end_known = reader is Reader.REPLICA or partition.is_high_watermark_current
        if not is_end_known and _may_be_too_early(wanted.timestamp, result):
            result.offset, result.timestamp = NO_OFFSET, NO_TIMESTAMP
            is_known = version >= _OFFSET_NOT_AVAILABLE_SINCE_VERSION
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE)
        if result.offset != NO_OFFSET:
            result.leader_epoch = partition.log.epochs.epoch_of(result.offset)
    except ApiError as error:
        result.error_code = error.code
    return result


def _may_be_too_early(timestamp: int, result: ListOffsetsResponsePartition) -> bool:
    """Return whether the result may depend on records whose commit this new leader cannot confirm yet."""
    return timestamp in (LATEST, MAX_TIMESTAMP) or (timestamp >= 0 and result.offset == NO_OFFSET)


async def _look_up(
    services: Services, partition: Partition, reader: Reader, timestamp: int, result: ListOffsetsResponsePartition
) -> None:
    log = partition.log
    if timestamp == LATEST:
        result.offset = partition.local.visible_end(reader)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        result.offset = log.log_start_offset
    elif timestamp == MAX_TIMESTAMP:
        newest = await read_when_cached(services.workers, partition, log.max_timestamp)
        if newest is not None:
            await _find_record(services, partition, reader, newest[1], newest[0], result)
    elif timestamp >= 0:
        batch = await read_when_cached(services.workers, partition, partial(log.find_timestamp, timestamp))
        if batch is not None:
            await _find_record(services, partition, reader, batch, timestamp, result)


async def _find_record(
    services: Services,
    partition: Partition,
    reader: Reader,
    batch: LogSlice,
    timestamp: int,
    result: ListOffsetsResponsePartition,
) -> None:
    """Answer the batch's first record at or after the timestamp, if the reader may see it. May decompress the batch."""
    from_offset = partition.log.log_start_offset
    found = await services.workers.read(lambda: first_record_at(batch.read(), timestamp, from_offset))
    if found is not None and found[0] < partition.local.visible_end(reader):
        result.offset, result.timestamp = found
