"""ElectLeaders, versions 0 to 2: partitions get their preferred leader back or, since version 1 and if an operator asks
for it, any leader at all where none is in sync.

No partitions named means all of them, and answers only for those where there was something to elect.
"""

from __future__ import annotations

from functools import partial

from flowstone.broker.changes import change
from flowstone.broker.context import RequestContext, Services
from flowstone.cluster.elections import ElectionResult, ElectionType, elect_leaders
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ElectLeadersResponseReplicaElectionResult,
)


async def handle(services: Services, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    wanted = None
    if request.topic_partitions is not None:
        wanted = [
            TopicPartition(topic.topic, partition)
            for topic in request.topic_partitions
            for partition in dict.fromkeys(topic.partitions)
        ]
    try:
        election_type = ElectionType(request.election_type)
    except ValueError:
        message = f"there is no election of type {request.election_type}"
        refused = [ElectionResult(each, ErrorCode.INVALID_REQUEST, message) for each in wanted or ()]
        return _response(refused, ErrorCode.INVALID_REQUEST)
    decide = partial(
        elect_leaders,
        election_type=election_type,
        partitions=wanted,
        topic_defaults=services.topic_defaults,
        me=services.config.node_id,
    )
    results = await change(services, decide, request.timeout_ms)
    return _response(results, ErrorCode.NONE)


def _response(results: list[ElectionResult], error: ErrorCode) -> ElectLeadersResponse:
    topics: dict[str, list[ElectLeadersResponsePartitionResult]] = {}
    for (topic, partition), code, message in results:
        topics.setdefault(topic, []).append(
            ElectLeadersResponsePartitionResult(partition_id=partition, error_code=code, error_message=message)
        )
    return ElectLeadersResponse(
        error_code=error,
        replica_election_results=[
            ElectLeadersResponseReplicaElectionResult(topic=topic, partition_result=partitions)
            for topic, partitions in topics.items()
        ],
    )
