"""CreatePartitions, versions 0 to 3: add partitions to existing topics. Partitions cannot be removed."""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.topic_creation import add_partitions_in_parts
from flowstone.cluster.decisions.partition_plans import NewPartitions
from flowstone.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsResponseTopic


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
    results = await add_partitions_in_parts(services, wanted, request.timeout_ms, validate_only=request.validate_only)
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsResponseTopic(name=result.name or "", error_code=result.error, error_message=result.message)
            for result in results
        ]
    )
