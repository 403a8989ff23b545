"""ListPartitionReassignments, version 0: list the partitions that are being moved, of those named or of all (null)."""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices, batched
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.cluster.decisions.reassignments import list_reassignments
from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
)


async def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    image = services.metadata.image
    slices = TimeSlices(services.clock.monotonic)
    found: list[tuple[TopicPartition, PartitionImage]] = []
    if request.topics is None:
        async for topic_image in slices.over(image.topics.values()):
            partitions = [TopicPartition(topic_image.name, index) for index in range(len(topic_image.partitions))]
            found += list_reassignments(image, partitions)
    else:
        wanted: dict[TopicPartition, None] = {}
        async for asked in slices.over(request.topics):
            wanted.update(dict.fromkeys(TopicPartition(asked.name, index) for index in asked.partition_indexes))
        async for some in slices.over(batched(wanted)):
            found += list_reassignments(image, some)
    topics: dict[str, list[ListPartitionReassignmentsResponsePartition]] = {}
    async for (topic, partition), state in slices.over(found):
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
