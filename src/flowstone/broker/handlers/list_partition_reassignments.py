"""ListPartitionReassignments, version 0: partitions that are on the move, of those asked for or of all (null)."""

from __future__ import annotations

from flowstone.broker.context import RequestContext, Services
from flowstone.cluster.reassignments import list_reassignments
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
)


def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    wanted = None
    if request.topics is not None:
        wanted = dict.fromkeys(
            TopicPartition(topic.name, index) for topic in request.topics for index in topic.partition_indexes
        )
    topics: dict[str, list[ListPartitionReassignmentsResponsePartition]] = {}
    for (topic, partition), state in list_reassignments(services.metadata.image, wanted):
        topics.setdefault(topic, []).append(
            ListPartitionReassignmentsResponsePartition(
                partition_index=partition,
                replicas=state.replicas,
                adding_replicas=state.adding,
                removing_replicas=state.removing,
            )
        )
    return ListPartitionReassignmentsResponse(
        topics=[
            ListPartitionReassignmentsResponseTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )
