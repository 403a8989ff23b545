"""DescribeProducers, version 0: lists a partition's producers and the first offsets of their open transactions.

Leader and followers respond, each from its own log: `kafka-transactions.sh find-hanging --broker-id` asks one broker
about all partitions of which it has a replica, to find the transaction that holds back the last stable offset. A
partition that is named several times is described once.

Deviations: at most `PRODUCERS_DESCRIBED_MAX` producers are described; the partitions after them are refused with
INVALID_REQUEST, and must be requested again.
"""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices, batched
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.broker.requests.partition_lookup import find_replica
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producers.producer_snapshot import SnapshotEntry
from flowstone.log.partition.producers.producer_state import PRODUCERS_MAX
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseProducer,
    DescribeProducersResponseTopic,
)

# Over all partitions of a request: as many as one partition can have.
PRODUCERS_DESCRIBED_MAX = PRODUCERS_MAX


async def handle(services: Services, context: RequestContext, request: DescribeProducersRequest) -> Message:
    described = _Description(services)
    topics = []
    for topic in request.topics:
        partitions = [
            await described.of(topic.name, index)
            async for index in described.slices.over(dict.fromkeys(topic.partition_indexes))
        ]
        topics.append(DescribeProducersResponseTopic(name=topic.name, partitions=partitions))
        await described.slices.yield_if_due()
    response = DescribeProducersResponse(topics=topics)
    return await encode_if_long(services, context, response, described.elements, described.slices)


class _Description:
    def __init__(self, services: Services) -> None:
        self._services = services
        self.slices = TimeSlices(services.clock.monotonic)
        self.elements = 0  # of the response
        self._left = PRODUCERS_DESCRIBED_MAX

    async def of(self, topic: str, index: int) -> DescribeProducersResponsePartition:
        self.elements += 1
        result = DescribeProducersResponsePartition(partition_index=index)
        try:
            partition = find_replica(self._services, topic, index)
            partition.local.check_serving()
            producers = partition.log.producers
            if len(producers) > self._left:
                told = f"at most {PRODUCERS_DESCRIBED_MAX} producers are described at once: ask for fewer partitions"
                raise ApiError(ErrorCode.INVALID_REQUEST, told)
            self._left -= len(producers)
            self.elements += len(producers)
            result.active_producers = []
            for some in batched(producers.entries()):
                result.active_producers += map(_described, some)
                await self.slices.yield_if_due()
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            result.active_producers = []
        return result


def _described(producer: SnapshotEntry) -> DescribeProducersResponseProducer:
    return DescribeProducersResponseProducer(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_first_offset,
    )
