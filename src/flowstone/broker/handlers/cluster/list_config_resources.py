"""ListConfigResources, versions 0 and 1: list the resources that have settings, by type.

Topics and brokers are listed whether they have settings or not, groups only if they have some, as in Kafka. Version 0
asks for subscriptions to clients' metrics only.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.cluster.decisions.config_changes import ResourceType
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListConfigResourcesResponseResource,
)

_TYPES_SINCE_VERSION = 1
_LISTED = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)


async def handle(services: Services, context: RequestContext, request: ListConfigResourcesRequest) -> Message:
    asked = request.resource_types if context.api_version >= _TYPES_SINCE_VERSION else (ResourceType.CLIENT_METRICS,)
    types = dict.fromkeys(asked)
    unknown = [each for each in types if each not in _LISTED]
    if unknown:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"resource type {unknown[0]} cannot be listed")
    slices = TimeSlices(services.clock.monotonic)
    resources = [
        ListConfigResourcesResponseResource(resource_name=name, resource_type=kind)
        for kind in types or _LISTED
        async for name in slices.over(tuple(_names(services.metadata.image, kind)))
    ]
    return await encode_if_long(
        services, context, ListConfigResourcesResponse(config_resources=resources), len(resources), slices
    )


def _names(image: ClusterImage, kind: int) -> Iterable[str]:
    if kind == ResourceType.TOPIC:
        return image.topics
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return map(str, image.brokers)
    return image.group_configs if kind == ResourceType.GROUP else image.client_metrics
