"""Plans the partitions that a request creates: how many, on which brokers, and whether they are permitted.

Pure. Raises `ApiError`, with Kafka's errors, for invalid numbers and assignments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowstone.cluster.decisions.partition_states import alive_brokers
from flowstone.cluster.decisions.placement import place_replicas
from flowstone.cluster.image.cluster_image import ClusterImage, PartitionImage, TopicImage
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode

# Kafka's limit on the partitions that one request may create.
PARTITIONS_PER_REQUEST_MAX = 10_000
DEFAULT_COUNT = -1


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


@dataclass(slots=True)
class PartitionBudget:
    """The number of partitions that may still be created, by the request and in the cluster."""

    partitions: int
    partitions_max: int
    request_left: int = PARTITIONS_PER_REQUEST_MAX

    def take(self, count: int) -> None:
        if count > self.request_left:
            raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        if self.partitions + count > self.partitions_max:
            message = f"The cluster takes at most {self.partitions_max} partitions (max.partitions)."
            raise ApiError(ErrorCode.POLICY_VIOLATION, message)
        self.request_left -= count
        self.partitions += count


def plan_topic(
    image: ClusterImage, topic: NewTopic, config: BrokerConfig, budget: PartitionBudget
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


def plan_growth(
    image: ClusterImage, topic: TopicImage, wanted: NewPartitions, budget: PartitionBudget
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
    added = []
    for index, replicas in enumerate(wanted.assignments, present):
        check_assignment(image, replicas, factor)
        added.append(_assigned_partition(image, index, replicas))
    budget.take(additional)
    return tuple(added)


def _placed_partitions(
    image: ClusterImage, count: int, factor: int, budget: PartitionBudget
) -> tuple[PartitionImage, ...]:
    brokers = sorted(alive_brokers(image))
    if factor > len(brokers):
        message = (
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
            f"cannot be reached because only {len(brokers)} broker(s) are registered and not fenced."
        )
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    # Topics with few partitions must not all begin at the first broker.
    start = budget.partitions
    budget.take(count)
    racks = {node_id: image.brokers[node_id].rack for node_id in brokers}
    placed = place_replicas(brokers, count=count, replication_factor=factor, start=start, racks=racks)
    return tuple(PartitionImage(replicas[0], 0, 0, replicas, replicas) for replicas in placed)


def _assigned_partitions(image: ClusterImage, topic: NewTopic, budget: PartitionBudget) -> tuple[PartitionImage, ...]:
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
        check_assignment(image, replicas, factor)
        replicas_of[index] = replicas
        factor = len(replicas)
    if any(index not in replicas_of for index in range(len(replicas_of))):
        message = "partitions should be a consecutive 0-based integer sequence"
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    budget.take(len(replicas_of))
    return tuple(_assigned_partition(image, index, replicas_of[index]) for index in range(len(replicas_of)))


def check_assignment(image: ClusterImage, replicas: Sequence[int], factor: int | None) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless a partition can be on these brokers, alive or not."""
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


def _assigned_partition(image: ClusterImage, index: int, replicas: Sequence[int]) -> PartitionImage:
    """Return a partition with the assigned replicas; those on fenced brokers must catch up later."""
    isr = tuple(node_id for node_id in replicas if not image.brokers[node_id].is_fenced)
    if not isr:
        message = f"All brokers specified in the manual partition assignment for partition {index} are fenced."
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return PartitionImage(isr[0], 0, 0, tuple(replicas), isr)
