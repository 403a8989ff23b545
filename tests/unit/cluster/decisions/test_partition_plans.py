"""Which partitions a topic is created with and grows by: numbers, given assignments, budgets, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flowstone.cluster.decisions.partition_plans import (
    PARTITIONS_PER_REQUEST_MAX,
    NewPartitions,
    NewTopic,
    PartitionBudget,
    plan_growth,
    plan_topic,
)
from flowstone.cluster.decisions.partition_states import alive_brokers
from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode

FENCED = 4
IMAGE = ClusterImage(
    brokers={node_id: BrokerImage(node_id, None, {}, is_fenced=node_id == FENCED) for node_id in (1, 2, 3, FENCED)}
)
CONFIG = BrokerConfig(num_partitions=5, default_replication_factor=2)
TOPIC = TopicImage("t", b"t" * 16, (PartitionImage(1, 0, 0, (1, 2), (1, 2)),))


def planned(count: int = -1, factor: int = -1, budget: PartitionBudget | None = None) -> tuple[PartitionImage, ...]:
    return plan_topic(IMAGE, NewTopic("t", count, factor), CONFIG, budget or PartitionBudget(0, 100_000))


def assigned(*replicas: tuple[int, Sequence[int]], **more: int) -> tuple[PartitionImage, ...]:
    topic = NewTopic("t", assignments=replicas, **more)  # type: ignore[arg-type]
    return plan_topic(IMAGE, topic, CONFIG, PartitionBudget(0, 100_000))


def grown(count: int, assignments: Any = None) -> tuple[PartitionImage, ...]:
    return plan_growth(IMAGE, TOPIC, NewPartitions("t", count, assignments), PartitionBudget(1, 100_000))


def refused(plan: Callable[..., object], *arguments: Any, **more: Any) -> tuple[ErrorCode, str]:
    with pytest.raises(ApiError) as error:
        plan(*arguments, **more)
    return error.value.code, error.value.message or ""


def test_a_fenced_broker_is_not_alive() -> None:
    assert alive_brokers(IMAGE) == {1, 2, 3}


def test_the_brokers_settings_count_where_the_request_has_no_numbers() -> None:
    assert [len(each.replicas) for each in planned()] == [2] * 5
    assert [len(each.replicas) for each in planned(1, 1)] == [1]
    assert [len(each.replicas) for each in planned(2, 3)] == [3, 3]


def test_a_new_partition_is_led_by_its_first_replica_with_all_in_sync() -> None:
    for each in planned(6, 3):
        assert set(each.replicas) == {1, 2, 3}
        assert each == PartitionImage(each.replicas[0], 0, 0, each.replicas, each.replicas)
    assert [each.leader for each in planned(3, 1)] == [1, 2, 3]


def test_the_first_leader_goes_on_where_the_last_topic_ended() -> None:
    assert [each.leader for each in planned(2, 1, PartitionBudget(1, 100))] == [2, 3]


@pytest.mark.parametrize("number", [0, -2])
def test_numbers_are_positive_or_left_to_the_broker(number: int) -> None:
    assert refused(planned, number)[0] is ErrorCode.INVALID_PARTITIONS
    assert refused(planned, 1, number)[0] is ErrorCode.INVALID_REPLICATION_FACTOR


def test_there_are_no_more_replicas_than_living_brokers() -> None:
    code, message = refused(planned, 1, 4)
    assert code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "only 3 broker(s)" in message


def test_a_budget_is_used_up_to_its_last_partition() -> None:
    budget = PartitionBudget(7, 10)
    assert len(planned(2, 1, budget)) == 2
    assert budget.partitions == 9
    assert len(planned(1, 1, budget)) == 1
    assert refused(planned, 1, 1, budget) == (
        ErrorCode.POLICY_VIOLATION,
        "The cluster takes at most 10 partitions (max.partitions).",
    )


def test_a_request_has_a_budget_of_its_own() -> None:
    budget = PartitionBudget(0, 10**9, 3)
    planned(2, 1, budget)
    assert budget.request_left == 1
    assert refused(planned, 2, 1, budget)[0] is ErrorCode.POLICY_VIOLATION
    planned(1, 1, budget)
    assert budget.request_left == 0
    assert PartitionBudget(0, 1).request_left == PARTITIONS_PER_REQUEST_MAX


def test_an_assigned_partition_is_led_by_its_first_living_replica() -> None:
    assert assigned((1, [2, 1]), (0, [FENCED, 3])) == (
        PartitionImage(3, 0, 0, (FENCED, 3), (3,)),
        PartitionImage(2, 0, 0, (2, 1), (2, 1)),
    )


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        ([(0, [1]), (0, [2])], "multiple manual partition assignments for partition 0"),
        ([(0, [1]), (2, [2])], "consecutive 0-based"),
        ([(1, [1])], "consecutive 0-based"),
        ([(0, [])], "an empty replica list"),
        ([(0, [1, 9, 8])], "broker 8, but no such broker"),
        ([(0, [3, 2, 1, 2])], "the broker 2 more than once"),
        ([(0, [1, 2]), (1, [1])], "1 replica(s), but this is not consistent"),
        ([(0, [FENCED])], "for partition 0 are fenced"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(assignments: list[tuple[int, list[int]]], reason: str) -> None:
    code, message = refused(assigned, *assignments)
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reason in message


@pytest.mark.parametrize("more", [{"num_partitions": 1}, {"replication_factor": 1}])
def test_an_assignment_leaves_no_numbers_open(more: dict[str, int]) -> None:
    assert refused(assigned, (0, [1]), **more)[0] is ErrorCode.INVALID_REQUEST


def test_a_topic_grows_by_what_is_missing_with_its_own_replication_factor() -> None:
    assert [len(each.replicas) for each in grown(4)] == [2, 2, 2]
    assert grown(3, [[3, 1], [FENCED, 2]]) == (
        PartitionImage(3, 0, 0, (3, 1), (3, 1)),
        PartitionImage(2, 0, 0, (FENCED, 2), (2,)),
    )


@pytest.mark.parametrize(("count", "reason"), [(1, "already has 1 partition"), (0, "0 would not be an increase")])
def test_a_topic_only_grows(count: int, reason: str) -> None:
    code, message = refused(grown, count)
    assert code is ErrorCode.INVALID_PARTITIONS
    assert reason in message


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        ([[1, 2]], "Attempted to add 2 additional partition(s), but only 1"),
        ([[1, 2], [2, 3], [3, 1]], "but only 3"),
        ([[1, 2], [3]], "have 2 replica(s)"),
        ([[1, 2], [FENCED, FENCED]], "more than once"),
    ],
)
def test_what_a_topic_grows_by_fits_to_what_it_has(assignments: list[list[int]], reason: str) -> None:
    code, message = refused(grown, 3, assignments)
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reason in message


def test_assigned_partitions_are_part_of_the_budget() -> None:
    budget = PartitionBudget(0, 2)
    topic = NewTopic("t", assignments=((0, [1]), (1, [2])))
    assert len(plan_topic(IMAGE, topic, CONFIG, budget)) == budget.partitions == 2
    assert refused(plan_topic, IMAGE, topic, CONFIG, budget)[0] is ErrorCode.POLICY_VIOLATION


def test_growth_by_assignment_is_part_of_the_budget() -> None:
    budget = PartitionBudget(1, 2)
    plan_growth(IMAGE, TOPIC, NewPartitions("t", 2, [[1, 2]]), budget)
    assert budget.partitions == 2
    wanted = NewPartitions("t", 2, [[1, 2]])
    assert refused(plan_growth, IMAGE, TOPIC, wanted, budget)[0] is ErrorCode.POLICY_VIOLATION
