"""CreatePartitions, versions 0 to 3: more partitions for topics that exist; there is no way back to fewer."""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.broker.changes import change
from flowstone.broker.context import RequestContext, Services
from flowstone.cluster.configs import broker_config
from flowstone.cluster.image import ClusterImage
from flowstone.cluster.partition_plans import NewPartitions
from flowstone.cluster.records import MetadataRecord
from flowstone.cluster.topic_changes import TopicResult, create_partitions
from flowstone.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsResponseTopic


async def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    wanted = [
        NewPartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [each.broker_ids for each in topic.assignments],
        )
        for topic in request.topics
    ]

    def decide(image: ClusterImage) -> tuple[Sequence[MetadataRecord], list[TopicResult]]:
        records, results = create_partitions(image, wanted, broker_config(image, services.config))
        return () if request.validate_only else records, results

    results = await change(services, decide, request.timeout_ms)
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsResponseTopic(name=result.name or "", error_code=result.error, error_message=result.message)
            for result in results
        ]
    )
