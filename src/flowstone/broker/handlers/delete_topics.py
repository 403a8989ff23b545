"""DeleteTopics, versions 1 to 6: by name, and since version 6 by name or id.

The response is sent once the names can be used again. If `delete.topic.enable` is false every topic is refused;
versions below 3 do not know the error for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import PART_WEIGHT, change_in_parts
from flowstone.broker.topics.mutation_quota import EXCEEDED, split_by_quota
from flowstone.cluster.decisions.topic_changes import TopicResult, delete_topics
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.metadata import Decision
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID
from flowstone.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicsResponseTopic

_DISABLED_ERROR_SINCE_VERSION = 3
_QUOTA_ERROR_SINCE_VERSION = 5


async def handle(services: Services, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    slices = TimeSlices(services.clock.monotonic)
    wanted = [(name, ZERO_UUID) for name in request.topic_names]
    asked: list[tuple[str | None, bytes]] = [*wanted, *((each.name, each.topic_id) for each in request.topics)]
    await slices.yield_if_due()
    if services.config.delete_topic_enable:
        since = _QUOTA_ERROR_SINCE_VERSION
        count = partial(_partition_count, services)
        asked, over = await split_by_quota(services, context, asked, count, strict_since_version=since)
        results = await delete_in_parts(services, asked, request.timeout_ms)
        results += (TopicResult(*each, ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED) for each in over)
        await services.logs.wait_forgotten()
    else:
        results = [_refused(context, name, topic_id) for name, topic_id in asked]
    return DeleteTopicsResponse(
        responses=[
            DeleteTopicsResponseTopic(
                name=result.name, topic_id=result.topic_id, error_code=result.error, error_message=result.message
            )
            async for result in slices.over(results)
        ]
    )


def _partition_count(services: Services, wanted: tuple[str | None, bytes]) -> int:
    (name, topic_id), image = wanted, services.metadata.image
    topic = image.topics_by_id.get(topic_id) if name is None else image.topics.get(name)
    return 0 if topic is None else len(topic.partitions)


async def delete_in_parts(
    services: Services, asked: Iterable[tuple[str | None, bytes]], timeout_ms: int
) -> list[TopicResult]:
    """Delete the topics in parts, so that other requests are handled in between."""
    image = services.metadata.image
    times = Counter(asked)

    def weigh(wanted: tuple[str | None, bytes]) -> int:
        name, topic_id = wanted
        topic = image.topics_by_id.get(topic_id) if name is None else image.topics.get(name)
        return 1 if topic is None else min(len(topic.partitions), PART_WEIGHT)

    def decide(image: ClusterImage, part: list[tuple[str | None, bytes]]) -> Decision[list[TopicResult]]:
        return delete_topics(image, [each for each in part for _ in range(min(times[each], 2))])

    return await change_in_parts(services, times, decide, timeout_ms, weigh)


def _refused(context: RequestContext, name: str | None, topic_id: bytes) -> TopicResult:
    known = context.api_version >= _DISABLED_ERROR_SINCE_VERSION
    error = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
    return TopicResult(name, topic_id, error, "Topic deletion is disabled.")
