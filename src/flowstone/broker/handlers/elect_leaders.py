"""ElectLeaders, versions 0 to 2: elect the preferred leaders of partitions, or unclean ones (since version 1).

An unclean election chooses any live replica where none is in sync. No named partitions means all of them; the response
then lists only those with something to elect.
"""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.broker.topics.metadata_changes import change_in_parts
from flowstone.cluster.decisions.elections import ElectionResult, ElectionType, elect_leaders
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.cluster.metadata import Decision
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ElectLeadersResponseReplicaElectionResult,
)

# If all partitions are requested, those with these errors are left out: led as they should be, or deleted meanwhile.
_NOTHING_TO_ELECT = (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def handle(services: Services, context: RequestContext, request: ElectLeadersRequest) -> Message:
    slices = TimeSlices(services.clock.monotonic)
    wanted = None
    if request.topic_partitions is not None:
        wanted = [
            TopicPartition(topic.topic, partition)
            for topic in request.topic_partitions
            async for partition in slices.over(dict.fromkeys(topic.partitions))
        ]
    try:
        election_type = ElectionType(request.election_type)
    except ValueError:
        message = f"there is no election of type {request.election_type}"
        refused = [ElectionResult(each, ErrorCode.INVALID_REQUEST, message) for each in wanted or ()]
        return await _response(services, context, refused, ErrorCode.INVALID_REQUEST)
    if wanted is None:
        results = await _elect_everywhere(services, election_type, request.timeout_ms)
    else:

        def decide(image: ClusterImage, part: list[TopicPartition]) -> Decision[list[ElectionResult]]:
            return elect_leaders(image, election_type, part, services.topic_defaults, services.config.node_id)

        results = await change_in_parts(services, wanted, decide, request.timeout_ms)
    return await _response(services, context, results, ErrorCode.NONE)


async def _elect_everywhere(services: Services, election_type: ElectionType, timeout_ms: int) -> list[ElectionResult]:
    """Elect leaders for all partitions; return the results without those in _NOTHING_TO_ELECT."""
    topics = services.metadata.image.topics

    def decide(image: ClusterImage, part: list[TopicImage]) -> Decision[list[ElectionResult]]:
        partitions = [TopicPartition(topic.name, index) for topic in part for index in range(len(topic.partitions))]
        records, results = elect_leaders(
            image, election_type, partitions, services.topic_defaults, services.config.node_id
        )
        return records, [each for each in results if each.error not in _NOTHING_TO_ELECT]

    return await change_in_parts(services, topics.values(), decide, timeout_ms, lambda topic: len(topic.partitions))


async def _response(
    services: Services, context: RequestContext, results: list[ElectionResult], error: ErrorCode
) -> Message:
    slices = TimeSlices(services.clock.monotonic)
    topics: dict[str, list[ElectLeadersResponsePartitionResult]] = {}
    async for (topic, partition), code, message in slices.over(results):
        topics.setdefault(topic, []).append(
            ElectLeadersResponsePartitionResult(partition_id=partition, error_code=code, error_message=message)
        )
    response = ElectLeadersResponse(
        error_code=error,
        replica_election_results=[
            ElectLeadersResponseReplicaElectionResult(topic=topic, partition_result=partitions)
            async for topic, partitions in slices.over(topics.items())
        ],
    )
    return await encode_if_long(services, context, response, len(results), slices)
