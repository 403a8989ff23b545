"""AlterPartitionReassignments, versions 0 and 1: move partitions to other brokers, or cancel their move.

The response says that the move has begun; ListPartitionReassignments lists those under way.
"""

from __future__ import annotations

from functools import partial

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import change_in_parts
from flowstone.cluster.decisions.reassignments import WantedReplicas, alter_reassignments
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
)


async def handle(
    services: Services, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    slices = TimeSlices(services.clock.monotonic)
    wanted = [
        WantedReplicas(TopicPartition(topic.name, each.partition_index), each.replicas)
        async for topic in slices.over(request.topics)
        for each in topic.partitions
    ]
    may_change_factor = request.allow_replication_factor_change
    decide = partial(
        alter_reassignments,
        may_change_factor=may_change_factor,
        topic_defaults=services.topic_defaults,
        me=services.config.node_id,
    )
    results = await change_in_parts(services, wanted, decide, request.timeout_ms)
    topics: dict[str, list[AlterPartitionReassignmentsResponsePartition]] = {}
    async for (topic, partition), error, message in slices.over(results):
        topics.setdefault(topic, []).append(
            AlterPartitionReassignmentsResponsePartition(
                partition_index=partition, error_code=error, error_message=message
            )
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor,
        responses=[
            AlterPartitionReassignmentsResponseTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )
