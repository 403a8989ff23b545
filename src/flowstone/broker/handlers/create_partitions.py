"""CreatePartitions, versions 0 to 3: add partitions to existing topics. Partitions cannot be removed."""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.mutation_quota import EXCEEDED, split_by_quota
from flowstone.broker.topics.topic_creation import add_partitions_in_parts
from flowstone.cluster.decisions.partition_plans import NewPartitions
from flowstone.cluster.decisions.topic_changes import TopicResult
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID
from flowstone.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsResponseTopic

_QUOTA_ERROR_SINCE_VERSION = 3


async def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    slices = TimeSlices(services.clock.monotonic)
    wanted = [
        NewPartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [each.broker_ids for each in topic.assignments],
        )
        async for topic in slices.over(request.topics)
    ]
    refused: list[NewPartitions] = []
    if not request.validate_only:

        def count(asked: NewPartitions) -> int:
            topic = services.metadata.image.topics.get(asked.name)
            return 0 if topic is None else max(asked.count - len(topic.partitions), 0)

        since = _QUOTA_ERROR_SINCE_VERSION
        wanted, refused = await split_by_quota(services, context, wanted, count, strict_since_version=since)
    results = await add_partitions_in_parts(services, wanted, request.timeout_ms, validate_only=request.validate_only)
    results += (TopicResult(each.name, ZERO_UUID, ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED) for each in refused)
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsResponseTopic(name=result.name or "", error_code=result.error, error_message=result.message)
            for result in results
        ]
    )
