"""Decides requests to create, delete and enlarge topics: pure, with Kafka's errors in Kafka's order.

Each function takes an image and returns the records to append and one result per topic. A topic that is refused does
not prevent the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from flowstone.cluster.decisions.config_changes import check_topic_configs
from flowstone.cluster.decisions.partition_plans import (
    PARTITIONS_PER_REQUEST_MAX,
    NewPartitions,
    NewTopic,
    PartitionBudget,
    plan_growth,
    plan_topic,
)
from flowstone.cluster.decisions.topic_names import (
    CLUSTER_METADATA,
    INTERNAL_TOPICS,
    check_topic_name,
    find_collision,
    is_internal,
)
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.cluster.image.ids import IdSource
from flowstone.cluster.image.records import MetadataRecord, PartitionsAdded, TopicCreated, TopicDeleted
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import ZERO_UUID

_NOT_HOSTED = "This server does not host this topic-partition."
_NO_SUCH_ID = "This server does not host this topic ID."


@dataclass(frozen=True, slots=True)
class TopicResult:
    name: str | None
    topic_id: bytes = ZERO_UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    # The topic as it is, or as it would be if the request only validates.
    topic: TopicImage | None = None


def create_topics(
    image: ClusterImage,
    topics: Sequence[NewTopic],
    config: BrokerConfig,
    new_id: IdSource,
    request_left: int = PARTITIONS_PER_REQUEST_MAX,
    *,
    internal_allowed: bool = False,
) -> tuple[list[MetadataRecord], list[TopicResult]]:
    """Return the records that create the topics, and one result per name.

    `request_left` is how many partitions the request may still make, of which these topics are a part. Internal topics
    are refused unless `internal_allowed` is set: a client's partition count would decide for good which coordinator a
    group has. Only the broker's coordinators set it.
    """
    repeated = {name for name, count in Counter(topic.name for topic in topics).items() if count > 1}
    records: list[MetadataRecord] = []
    results: list[TopicResult] = []
    made: dict[str, TopicImage] = {}
    budget = PartitionBudget(image.partition_count, config.max_partitions, request_left)
    for topic in topics:
        if topic.name in repeated:
            continue
        try:
            check_new_name(image, topic.name, made, internal_allowed=internal_allowed)
            configs = _creation_configs(topic)
            states = plan_topic(image, topic, config, budget)
        except ApiError as error:
            results.append(TopicResult(topic.name, error=error.code, message=error.message))
            continue
        created = made[topic.name] = TopicImage(topic.name, new_id(), states, configs)
        records.append(TopicCreated(created.name, created.topic_id, created.partitions, created.configs))
        results.append(TopicResult(topic.name, created.topic_id, topic=created))
    return records, results + refuse_repeated(repeated)


def delete_topics(
    image: ClusterImage, wanted: Sequence[tuple[str | None, bytes]]
) -> tuple[list[MetadataRecord], list[TopicResult]]:
    """Delete topics; `wanted` names each either by name, with a zero id, or by id alone."""
    times = Counter(wanted)
    records: list[MetadataRecord] = []
    results: list[TopicResult] = []
    taken: set[bytes] = set()
    for (name, topic_id), count in times.items():
        try:
            topic = _topic_to_delete(image, name, topic_id, count)
            if topic.topic_id in taken:
                message = "The provided topic name maps to an ID that was already supplied."
                raise ApiError(ErrorCode.INVALID_REQUEST, message)
        except ApiError as error:
            results.append(TopicResult(name, topic_id, error.code, error.message))
            continue
        taken.add(topic.topic_id)
        records.append(TopicDeleted(topic.topic_id))
        results.append(TopicResult(topic.name, topic.topic_id, topic=topic))
    return records, results


def create_partitions(
    image: ClusterImage,
    topics: Sequence[NewPartitions],
    config: BrokerConfig,
    request_left: int = PARTITIONS_PER_REQUEST_MAX,
) -> tuple[list[MetadataRecord], list[TopicResult]]:
    """Add partitions to topics. `request_left` is how many partitions the request may still create."""
    repeated = {name for name, count in Counter(topic.name for topic in topics).items() if count > 1}
    results = refuse_repeated(repeated)
    records: list[MetadataRecord] = []
    budget = PartitionBudget(image.partition_count, config.max_partitions, request_left)
    for wanted in topics:
        if wanted.name in repeated:
            continue
        try:
            topic = image.topics.get(wanted.name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HOSTED)
            if is_internal(topic.name):
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, _internal_growth_message(topic.name))
            added = plan_growth(image, topic, wanted, budget)
        except ApiError as error:
            results.append(_refused(wanted.name, error.code, error.message))
            continue
        records.append(PartitionsAdded(topic.topic_id, added))
        results.append(TopicResult(topic.name, topic.topic_id, topic=topic))
    return records, results


def refuse_repeated(names: Iterable[str]) -> list[TopicResult]:
    """Return the results of topics that one request names several times."""
    return [_refused(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name in sorted(names)]


def _refused(name: str | None, error: ErrorCode, message: str | None) -> TopicResult:
    return TopicResult(name, error=error, message=message)


def check_new_name(
    image: ClusterImage,
    name: str,
    made: Mapping[str, TopicImage] = MappingProxyType({}),
    *,
    internal_allowed: bool = False,
) -> None:
    """Raise ApiError if no new topic can have this name; `made` are the topics that the same request creates."""
    if name == CLUSTER_METADATA:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_topic_name(name)
    if is_internal(name):
        if not internal_allowed:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Creation of internal topic {name} is prohibited: the broker creates it, with its own settings, when "
                "a client first needs it.",
            )
        return  # a colliding topic of an older release must not prevent groups from working
    collision = (
        find_collision(name, image.topics) or find_collision(name, made) or find_collision(name, INTERNAL_TOPICS)
    )
    if collision is not None:
        message = f"Topic '{name}' collides with existing topic: {collision}"
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _internal_growth_message(name: str) -> str:
    return (
        f"The partition count of internal topic {name} is fixed: it decides where each key's state is stored. "
        "Set it before the topic is created (offsets.topic.num.partitions)."
    )


def _creation_configs(topic: NewTopic) -> dict[str, str]:
    missing = [name for name, value in topic.configs if value is None]
    if missing:
        message = f"Null value not supported for topic configs: {','.join(missing)}"
        raise ApiError(ErrorCode.INVALID_CONFIG, message)
    configs = {name: value for name, value in topic.configs if value is not None}
    check_topic_configs(configs)
    return configs


def _topic_to_delete(image: ClusterImage, name: str | None, topic_id: bytes, count: int) -> TopicImage:
    if name is None and topic_id == ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if name is not None and topic_id != ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if count > 1:
        kind = "id" if name is None else "name"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {kind}.")
    topic = image.topics_by_id.get(topic_id) if name is None else image.topics.get(name)
    if topic is None:
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, _NO_SUCH_ID)
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HOSTED)
    return topic
