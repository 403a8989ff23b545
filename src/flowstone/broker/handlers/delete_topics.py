"""DeleteTopics, versions 1 to 6: by name, and since version 6 by name or id.

The answer leaves once the names can be used again. Where `delete.topic.enable` is off every topic is refused; versions
below 3 do not know the error for that.
"""

from __future__ import annotations

from flowstone.broker.changes import change
from flowstone.broker.context import RequestContext, Services
from flowstone.cluster.topic_changes import TopicResult, delete_topics
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID
from flowstone.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicsResponseTopic

_DISABLED_ERROR_SINCE_VERSION = 3


async def handle(services: Services, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    wanted = [(name, ZERO_UUID) for name in request.topic_names]
    asked: list[tuple[str | None, bytes]] = [*wanted, *((each.name, each.topic_id) for each in request.topics)]
    if services.config.delete_topic_enable:
        results = await change(services, lambda image: delete_topics(image, asked), request.timeout_ms)
        await services.logs.wait_forgotten()
    else:
        results = [_refused(context, name, topic_id) for name, topic_id in asked]
    return DeleteTopicsResponse(
        responses=[
            DeleteTopicsResponseTopic(
                name=result.name, topic_id=result.topic_id, error_code=result.error, error_message=result.message
            )
            for result in results
        ]
    )


def _refused(context: RequestContext, name: str | None, topic_id: bytes) -> TopicResult:
    known = context.api_version >= _DISABLED_ERROR_SINCE_VERSION
    error = ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST
    return TopicResult(name, topic_id, error, "Topic deletion is disabled.")
