"""What becomes of requests to create, delete and enlarge topics: pure decisions, with Kafka's errors in Kafka's order.

Each function takes an image and gives the records to append and one result per topic asked for. A topic that cannot be
had does not keep the others from being made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flowstone.cluster.config_changes import check_topic_configs
from flowstone.cluster.ids import IdSource
from flowstone.cluster.image import ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.placement import place_replicas
from flowstone.cluster.records import MetadataRecord, PartitionsAdded, TopicCreated, TopicDeleted
from flowstone.cluster.topic_names import CLUSTER_METADATA, check_topic_name, find_collision
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import ZERO_UUID

# Kafka's limit on what one request may make.
PARTITIONS_PER_REQUEST_MAX = 10_000
DEFAULT_COUNT = -1

_NOT_HOSTED = "This server does not host this topic-partition."
_NO_SUCH_ID = "This server does not host this topic ID."


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    num_partitions: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT
    # (partition index, broker ids), in the request's order; empty: the cluster decides.
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True, slots=True)
class NewPartitions:
    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicResult:
    name: str | None
    topic_id: bytes = ZERO_UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    # The topic as it is, or as it would be if the request only asked to validate.
    topic: TopicImage | None = None


@dataclass(slots=True)
class _Budget:
    """How many partitions may still be made, by the request and by the cluster."""

    partitions: int
    partitions_max: int
    request_left: int = field(default=PARTITIONS_PER_REQUEST_MAX)

    def take(self, count: int) -> None:
        if count > self.request_left:
            raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        if self.partitions + count > self.partitions_max:
            message = f"The cluster takes at most {self.partitions_max} partitions (max.partitions)."
            raise ApiError(ErrorCode.POLICY_VIOLATION, message)
        self.request_left -= count
        self.partitions += count


def create_topics(
    image: ClusterImage, topics: Sequence[NewTopic], config: BrokerConfig, new_id: IdSource
) -> tuple[list[MetadataRecord], list[TopicResult]]:
    repeated = {name for name, count in Counter(topic.name for topic in topics).items() if count > 1}
    records: list[MetadataRecord] = []
    results: list[TopicResult] = []
    made: dict[str, TopicImage] = {}
    budget = _Budget(image.partition_count, config.max_partitions)
    for topic in topics:
        if topic.name in repeated:
            continue
        try:
            _check_new_name(image, made, topic.name)
            configs = _creation_configs(topic)
            states = _new_topic_partitions(image, topic, config, budget)
        except ApiError as error:
            results.append(TopicResult(topic.name, error=error.code, message=error.message))
            continue
        created = made[topic.name] = TopicImage(topic.name, new_id(), states, configs)
        records.append(TopicCreated(created.name, created.topic_id, created.partitions, created.configs))
        results.append(TopicResult(topic.name, created.topic_id, topic=created))
    results += [_refused(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name in sorted(repeated)]
    return records, results


def delete_topics(
    image: ClusterImage, wanted: Sequence[tuple[str | None, bytes]]
) -> tuple[list[MetadataRecord], list[TopicResult]]:
    """`wanted` names each topic either by name, with a zero id, or by id alone."""
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
    image: ClusterImage, topics: Sequence[NewPartitions], config: BrokerConfig
) -> tuple[list[MetadataRecord], list[TopicResult]]:
    repeated = {name for name, count in Counter(topic.name for topic in topics).items() if count > 1}
    results = [_refused(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name in sorted(repeated)]
    records: list[MetadataRecord] = []
    budget = _Budget(image.partition_count, config.max_partitions)
    for wanted in topics:
        if wanted.name in repeated:
            continue
        try:
            topic = image.topics.get(wanted.name)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HOSTED)
            added = _additional_partitions(image, topic, wanted, budget)
        except ApiError as error:
            results.append(_refused(wanted.name, error.code, error.message))
            continue
        records.append(PartitionsAdded(topic.topic_id, added))
        results.append(TopicResult(topic.name, topic.topic_id, topic=topic))
    return records, results


def _refused(name: str | None, error: ErrorCode, message: str | None) -> TopicResult:
    return TopicResult(name, error=error, message=message)


def _check_new_name(image: ClusterImage, made: Mapping[str, TopicImage], name: str) -> None:
    if name == CLUSTER_METADATA:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_topic_name(name)
    collision = find_collision(name, image.topics) or find_collision(name, made)
    if collision is not None:
        message = f"Topic '{name}' collides with existing topic: {collision}"
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _creation_configs(topic: NewTopic) -> dict[str, str]:
    missing = [name for name, value in topic.configs if value is None]
    if missing:
        message = f"Null value not supported for topic configs: {','.join(missing)}"
        raise ApiError(ErrorCode.INVALID_CONFIG, message)
    configs = {name: value for name, value in topic.configs if value is not None}
    check_topic_configs(configs)
    return configs


def _new_topic_partitions(
    image: ClusterImage, topic: NewTopic, config: BrokerConfig, budget: _Budget
) -> tuple[PartitionImage, ...]:
    if topic.assignments:
        return _assigned_partitions(image, topic, budget)
    if topic.replication_factor < DEFAULT_COUNT or topic.replication_factor == 0:
        message = "Replication factor must be larger than 0, or -1 to use the default value."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if topic.num_partitions < DEFAULT_COUNT or topic.num_partitions == 0:
        message = "Number of partitions was set to an invalid non-positive value."
        raise ApiError(ErrorCode.INVALID_PARTITIONS, message)
    count = config.num_partitions if topic.num_partitions == DEFAULT_COUNT else topic.num_partitions
    factor = (
        config.default_replication_factor if topic.replication_factor == DEFAULT_COUNT else topic.replication_factor
    )
    return _placed_partitions(image, count, factor, budget)


def _placed_partitions(image: ClusterImage, count: int, factor: int, budget: _Budget) -> tuple[PartitionImage, ...]:
    brokers = sorted(image.brokers)
    if factor > len(brokers):
        message = (
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            f"cannot be reached because only {len(brokers)} broker(s) are registered."
        )
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    # Topics of few partitions must not all begin at the first broker.
    start = budget.partitions
    budget.take(count)
    return tuple(map(_new_partition, place_replicas(brokers, count=count, replication_factor=factor, start=start)))


def _assigned_partitions(image: ClusterImage, topic: NewTopic, budget: _Budget) -> tuple[PartitionImage, ...]:
    for given, name in ((topic.replication_factor, "replication factor"), (topic.num_partitions, "numPartitions")):
        if given != DEFAULT_COUNT:
            message = f"A manual partition assignment was specified, but {name} was not set to -1."
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
    replicas_of: dict[int, Sequence[int]] = {}
    factor: int | None = None
    for index, replicas in topic.assignments:
        if index in replicas_of:
            message = f"Found multiple manual partition assignments for partition {index}"
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        _check_assignment(image, replicas, factor)
        replicas_of[index] = replicas
        factor = len(replicas)
    if any(index not in replicas_of for index in range(len(replicas_of))):
        message = "partitions should be a consecutive 0-based integer sequence"
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    budget.take(len(replicas_of))
    return tuple(_new_partition(replicas_of[index]) for index in range(len(replicas_of)))


def _check_assignment(image: ClusterImage, replicas: Sequence[int], factor: int | None) -> None:
    problem = None
    unknown = sorted(set(replicas) - set(image.brokers))
    if not replicas:
        problem = "an empty replica list."
    elif unknown:
        problem = f"broker {unknown[0]}, but no such broker is registered."
    elif len(set(replicas)) < len(replicas):
        twice = next(each for each in sorted(replicas) if replicas.count(each) > 1)
        problem = f"the broker {twice} more than once."
    elif factor is not None and len(replicas) != factor:
        problem = (
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous partitions, "
            f"which have {factor} replica(s)."
        )
    if problem is not None:
        message = f"The manual partition assignment includes {problem}"
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _additional_partitions(
    image: ClusterImage, topic: TopicImage, wanted: NewPartitions, budget: _Budget
) -> tuple[PartitionImage, ...]:
    present = len(topic.partitions)
    if wanted.count == present:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if wanted.count < present:
        message = (
            f"The topic {topic.name} currently has {present} partition(s); {wanted.count} would not be an increase."
        )
        raise ApiError(ErrorCode.INVALID_PARTITIONS, message)
    additional, factor = wanted.count - present, len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        return _placed_partitions(image, additional, factor, budget)
    if len(wanted.assignments) != additional:
        message = (
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified."
        )
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    for replicas in wanted.assignments:
        _check_assignment(image, replicas, factor)
    budget.take(additional)
    return tuple(map(_new_partition, wanted.assignments))


def _new_partition(replicas: Sequence[int]) -> PartitionImage:
    return PartitionImage(replicas[0], 0, 0, tuple(replicas), tuple(replicas))


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
