"""AlterReplicaLogDirs, versions 1 and 2: move replicas of this broker to others of its log directories.

The response says that the move has begun; DescribeLogDirs shows it as a future replica until it has ended. A partition
that this broker does not have is created in the directory when it comes.
"""

from __future__ import annotations

from flowstone.broker.disks.directory_moves import move_to_directory
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirsResponsePartition,
    AlterReplicaLogDirsResponseResult,
)


async def handle(
    services: Services, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    results: dict[str, list[AlterReplicaLogDirsResponsePartition]] = {}
    slices = TimeSlices(services.clock.monotonic)
    wanted = (
        (directory.path, topic.name, index)
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    )
    async for path, topic, index in slices.over(wanted):
        answer = AlterReplicaLogDirsResponsePartition(
            partition_index=index, error_code=_move(services, path, topic, index)
        )
        results.setdefault(topic, []).append(answer)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponseResult(topic_name=name, partitions=answers) for name, answers in results.items()
        ]
    )


def _move(services: Services, path: str, topic: str, index: int) -> ErrorCode:
    image = services.metadata.image.topics.get(topic)
    if image is None or not 0 <= index < len(image.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        move_to_directory(services.logs, services.partitions, TopicPartition(topic, index), path)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
