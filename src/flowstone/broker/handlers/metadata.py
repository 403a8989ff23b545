"""Metadata, versions 0 to 13: list live brokers, topics, and the leaders of partitions.

All topics are requested by an empty array in version 0 and by null since; since version 1 an empty array means none.
Topics are named, or since version 12 requested by id; if any id is given, only ids count, as in Kafka.

An unknown topic is created if both the request and the broker allow it. Kafka answers such a request with
LEADER_NOT_AVAILABLE, and the client retries; here the response is sent when the topic is ready, and contains it.
Internal topics are not created this way, but by their coordinators. A long response is assembled from cached parts.

A client gets the topics that it may describe; one that it names and may not describe, or may not create, is
TOPIC_AUTHORIZATION_FAILED, whether it exists or not.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowstone.broker.loop.time_slices import TimeSlices, batched
from flowstone.broker.requests.access import operations_of_cluster
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.broker.requests.partition_lookup import live_brokers
from flowstone.broker.requests.permissions import CLUSTER_CREATE, TOPIC_CREATE, TOPIC_DESCRIBE
from flowstone.broker.topics.encoded_topics import PARTS_PARTITIONS_MIN, Topic
from flowstone.broker.topics.topic_creation import create_in_parts
from flowstone.broker.topics.topic_descriptions import Form, describe, error_for_missing
from flowstone.cluster.decisions.acl_operations import (
    ALL_TOPIC_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    ResourceType,
)
from flowstone.cluster.decisions.partition_plans import NewTopic
from flowstone.cluster.decisions.registration import controller_id
from flowstone.cluster.decisions.topic_names import is_internal
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)

_IDS_SINCE_VERSION = 12
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def handle(services: Services, context: RequestContext, request: MetadataRequest) -> Message:
    form = Form(context.api_version, context.session.listener_name, request.include_topic_authorized_operations)
    access, session = services.access, context.session
    slices = TimeSlices(services.clock.monotonic)
    if request.topics is None or (context.api_version == 0 and not request.topics):
        image = services.metadata.image
        response = _response(services, context, request)
        if access is not None:
            found: list[Topic] = [
                each
                async for each in slices.over(image.topics.values())
                if access.may(session, TOPIC_DESCRIBE, each.name)
            ]
            return await _respond(services, context, form, response, image, found)
        if _is_long(services, len(image.topics) + image.partition_count):
            return await services.metadata_parts.encode_all(response, image, form)
        response.topics = [describe(image, topic, form) for topic in image.topics.values()]
        return response
    names: dict[str, None] = {}
    topic_ids: dict[bytes, None] = {}
    async for some in slices.over(batched(request.topics)):
        if context.api_version < _IDS_SINCE_VERSION and any(map(_needs_ids, some)):
            return _refused(request.topics, ErrorCode.INVALID_REQUEST)
        names.update(dict.fromkeys([each.name or "" for each in some]))
        topic_ids.update(dict.fromkeys([each.topic_id for each in some if each.topic_id != ZERO_UUID]))
    if topic_ids:
        image = services.metadata.image
        topics = [_by_id(services, context, image, topic_id) async for topic_id in slices.over(topic_ids)]
    else:
        image, topics = await _by_name(services, context, request, names, slices)
    await slices.yield_if_due()
    response = _response(services, context, request)
    return await _respond(services, context, form, response, image, topics)


async def _respond(
    services: Services,
    context: RequestContext,
    form: Form,
    response: MetadataResponse,
    image: ClusterImage,
    topics: list[Topic],
) -> Message:
    """Return the response with these topics."""
    if form.tells_operations:
        for missing in topics:
            if isinstance(missing, MetadataResponseTopic) and missing.error_code != _DENIED:
                missing.topic_authorized_operations = ALL_TOPIC_OPERATIONS
        if services.access is not None:
            return await _with_operations(services, context, form, response, image, topics)
    if _is_long(services, len(topics) + sum(len(topic.partitions) for topic in topics)):
        return await services.metadata_parts.encode_some(response, image, topics, form)
    response.topics = [describe(image, topic, form) if isinstance(topic, TopicImage) else topic for topic in topics]
    return response


async def _with_operations(
    services: Services,
    context: RequestContext,
    form: Form,
    response: MetadataResponse,
    image: ClusterImage,
    topics: list[Topic],
) -> Message:
    """Return the response with the operations that the client may do with each topic."""
    slices, access = TimeSlices(services.clock.monotonic), services.access
    assert access is not None
    elements, described = 0, []
    async for topic in slices.over(topics):
        told = describe(image, topic, form) if isinstance(topic, TopicImage) else topic
        if told.name is not None and told.error_code != _DENIED:
            told.topic_authorized_operations = access.operations(
                context.session, ResourceType.TOPIC, told.name, TOPIC_OPERATIONS
            )
        elements += 1 + len(told.partitions)
        described.append(told)
    response.topics = described
    return await encode_if_long(services, context, response, elements, slices)


def _is_long(services: Services, count: int) -> bool:
    """Return whether a response about so many topics and partitions is assembled from cached parts.

    It stays a message under a test's wire faults, which change messages.
    """
    return count >= PARTS_PARTITIONS_MIN and services.intercept is None


def _response(services: Services, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Return the response without its topics."""
    image, operations = services.metadata.image, NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = operations_of_cluster(services.access, context.session)
    return MetadataResponse(
        brokers=_brokers(image, context.session.listener_name),
        cluster_id=image.cluster_id,
        controller_id=controller_id(image),
        cluster_authorized_operations=operations,
    )


def _needs_ids(topic: MetadataRequestTopic) -> bool:
    return topic.name is None or topic.topic_id != ZERO_UUID


def _refused(topics: Iterable[MetadataRequestTopic], error: ErrorCode) -> MetadataResponse:
    refused = [
        MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id) for topic in topics
    ]
    return MetadataResponse(topics=refused)


def _by_id(services: Services, context: RequestContext, image: ClusterImage, topic_id: bytes) -> Topic:
    """Return the topic with the id. A refusal does not tell its name; ids are no secret, as in Kafka."""
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    if services.access is not None and not services.access.check(context.session, TOPIC_DESCRIBE, topic.name):
        return MetadataResponseTopic(error_code=_DENIED, name=None, topic_id=topic_id)
    return topic


async def _by_name(
    services: Services, context: RequestContext, request: MetadataRequest, names: Iterable[str], slices: TimeSlices
) -> tuple[ClusterImage, list[Topic]]:
    errors: dict[str, ErrorCode] = {}
    access, session = services.access, context.session
    if access is not None:
        errors = {name: _DENIED async for name in slices.over(names) if not access.check(session, TOPIC_DESCRIBE, name)}
    missing: list[str] = []
    async for some in slices.over(batched(names)):
        known = services.metadata.image.topics
        missing += [name for name in some if name not in errors and name not in known and not is_internal(name)]
    if missing and request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        if access is not None and not access.may(session, CLUSTER_CREATE):
            denied = {name async for name in slices.over(missing) if not access.check(session, TOPIC_CREATE, name)}
            errors |= dict.fromkeys(denied, _DENIED)
            missing = [name for name in missing if name not in denied]
        errors |= await _create(services, missing, slices)
    image = services.metadata.image
    topics: list[Topic] = []
    async for name in slices.over(names):
        topic = image.topics.get(name)
        if topic is not None and errors.get(name) != _DENIED:
            topics.append(topic)
        else:
            error = errors.get(name, error_for_missing(name))
            topics.append(
                MetadataResponseTopic(error_code=error, name=name, is_internal=error != _DENIED and is_internal(name))
            )
    return image, topics


async def _create(services: Services, names: list[str], slices: TimeSlices) -> dict[str, ErrorCode]:
    """Create topics with the broker's defaults; return the errors by name.

    A topic that another request is creating does not exist yet: its error is LEADER_NOT_AVAILABLE, which clients retry.
    """
    results = await create_in_parts(services, [NewTopic(name) async for name in slices.over(names)])
    errors = {
        result.name: result.error async for result in slices.over(results) if result.name is not None and result.error
    }
    being_created = (name for name, error in errors.items() if error is ErrorCode.TOPIC_ALREADY_EXISTS)
    return errors | dict.fromkeys(being_created, ErrorCode.LEADER_NOT_AVAILABLE)


def _brokers(image: ClusterImage, listener_name: str) -> list[MetadataResponseBroker]:
    return [
        MetadataResponseBroker(node_id=broker.node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker in live_brokers(image)
        if (endpoint := broker.listeners.get(listener_name)) is not None
    ]
