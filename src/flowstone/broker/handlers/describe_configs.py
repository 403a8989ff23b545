"""DescribeConfigs, versions 1 to 4: list settings of topics, groups, this broker and its loggers, each with its source.

A broker resource is this broker's id, or "" for the dynamic values that all brokers share. An empty list of names
requests every setting, like null. Values of sensitive settings are null, as in Kafka. A resource that is named twice is
answered once: the answer is a thousand times as long as the request.
"""

from __future__ import annotations

from collections.abc import Collection

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.broker.topics.log_levels import log_levels
from flowstone.cluster.decisions.config_changes import ResourceType, check_broker_name
from flowstone.cluster.decisions.configs import (
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    describe_broker,
    describe_client_metrics,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from flowstone.cluster.decisions.topic_names import check_topic_name
from flowstone.cluster.image.cluster_image import CLUSTER_DEFAULT
from flowstone.config import Kind, Setting
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResource,
    DescribeConfigsResponseSynonym,
)


async def handle(services: Services, context: RequestContext, request: DescribeConfigsRequest) -> Message:
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    slices = TimeSlices(services.clock.monotonic)
    results = [_describe(services, request, each) async for each in slices.over(resources.values())]
    elements = len(results) + sum(len(result.configs) for result in results)
    return await encode_if_long(services, context, DescribeConfigsResponse(results=results), elements, slices)


def _describe(
    services: Services, request: DescribeConfigsRequest, resource: DescribeConfigsRequestResource
) -> DescribeConfigsResponseResource:
    answer = DescribeConfigsResponseResource(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        entries = _entries(services, resource)
    except ApiError as error:
        answer.error_code, answer.error_message = error.code, error.message
    else:
        answer.configs = [_config(entry, request) for entry in entries]
    return answer


def _entries(services: Services, resource: DescribeConfigsRequestResource) -> list[ConfigEntry]:
    image, config, name = services.metadata.image, services.config, resource.resource_name
    names = set(resource.configuration_keys or ()) or None
    if resource.resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        topic = image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return describe_topic(image, topic, services.topic_defaults, config.node_id, names)
    if resource.resource_type == ResourceType.BROKER:
        if name == CLUSTER_DEFAULT:
            return describe_cluster_default(image, names)
        check_broker_name(name, config.node_id)
        return describe_broker(image, config, services.topic_defaults, names)
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        check_broker_name(name, config.node_id)
        return _loggers(names)
    if resource.resource_type == ResourceType.CLIENT_METRICS:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return describe_client_metrics(image, name, names)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(image, name, config, names)
    message = f"Unexpected resource type {resource.resource_type} for resource {name}"
    raise ApiError(ErrorCode.INVALID_REQUEST, message)


def _loggers(names: Collection[str] | None) -> list[ConfigEntry]:
    """Return the levels of this broker's loggers."""
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [
        ConfigEntry(
            Setting(name, Kind.STRING, level, "The level of a logger.", read_only=False),
            level,
            (ConfigSynonym(name, level, source),),
        )
        for name, level in log_levels().items()
        if names is None or name in names
    ]


def _config(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResponseConfig:
    is_sensitive = entry.setting.is_sensitive
    synonyms = [
        DescribeConfigsResponseSynonym(name=each.name, value=None if is_sensitive else each.value, source=each.source)
        for each in (entry.synonyms if request.include_synonyms else ())
    ]
    return DescribeConfigsResponseConfig(
        name=entry.setting.name,
        value=None if is_sensitive else entry.value,
        is_sensitive=is_sensitive,
        read_only=entry.setting.read_only,
        config_source=entry.source,
        synonyms=synonyms,
        config_type=entry.setting.kind,
        documentation=entry.setting.doc if request.include_documentation else None,
    )
