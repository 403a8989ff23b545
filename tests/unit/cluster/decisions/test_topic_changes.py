"""Decisions on topics: what is made, what is refused, and with which of Kafka's errors when several would do."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from flowstone.cluster.decisions.config_changes import SETTING_VALUE_LENGTH_MAX
from flowstone.cluster.decisions.partition_plans import PARTITIONS_PER_REQUEST_MAX, NewPartitions, NewTopic
from flowstone.cluster.decisions.placement import place_replicas
from flowstone.cluster.decisions.topic_changes import TopicResult, create_partitions, create_topics, delete_topics
from flowstone.cluster.decisions.topic_names import (
    CONSUMER_OFFSETS,
    INTERNAL_TOPICS,
    TOPIC_NAME_LENGTH_MAX,
    is_internal,
)
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, BrokerImage, ClusterImage
from flowstone.cluster.image.records import BrokerRegistered, MetadataRecord, TopicCreated
from flowstone.cluster.image.replay import apply
from flowstone.config import BrokerConfig
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID

CONFIG = BrokerConfig(num_partitions=2)


def cluster(brokers: int = 1, *names: str) -> ClusterImage:
    image = apply(EMPTY_IMAGE, [BrokerRegistered(BrokerImage(node_id, None, {})) for node_id in range(1, brokers + 1)])
    return apply(image, create(image, *(NewTopic(name) for name in names), internal_allowed=True)[0])


def create(
    image: ClusterImage, *topics: NewTopic, config: BrokerConfig = CONFIG, internal_allowed: bool = False
) -> tuple[list[MetadataRecord], list[TopicResult]]:
    numbers = itertools.count(image.version + 100)
    return create_topics(
        image, topics, config, lambda: next(numbers).to_bytes(16, "big"), internal_allowed=internal_allowed
    )


def error_of(image: ClusterImage, topic: NewTopic, config: BrokerConfig = CONFIG) -> ErrorCode:
    records, (result,) = create(image, topic, config=config)
    assert bool(records) == (result.error == ErrorCode.NONE)
    assert bool(result.message) == (result.error != ErrorCode.NONE)
    return result.error


def test_a_topic_without_numbers_gets_the_brokers() -> None:
    image = cluster(1, "a")
    topic = image.topics["a"]
    assert len(topic.partitions) == CONFIG.num_partitions
    assert [(each.leader, each.leader_epoch, each.replicas, each.isr) for each in topic.partitions] == [
        (1, 0, (1,), (1,))
    ] * 2
    assert topic.topic_id != ZERO_UUID


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * TOPIC_NAME_LENGTH_MAX, "...", "__mine"])
def test_a_legal_name_is_taken(name: str) -> None:
    assert error_of(cluster(), NewTopic(name)) == ErrorCode.NONE


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "../etc", "ü", "a\n", "a\0", "a:b"])
def test_an_illegal_name_is_refused(name: str) -> None:
    assert error_of(cluster(), NewTopic(name)) == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("present", "name"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c"), ("a._", "a_."), (7 * "a.", 7 * "a_")]
)
def test_names_that_differ_only_in_dots_and_underscores_clash(present: str, name: str) -> None:
    assert error_of(cluster(1, present), NewTopic(name)) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_of_one_request_clash_with_each_other_too() -> None:
    _, results = create(cluster(), NewTopic("a.b"), NewTopic("a_b"))
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_names_with_dashes_do_not_clash() -> None:
    assert error_of(cluster(1, "a-b"), NewTopic("a_b")) == ErrorCode.NONE


def test_a_topic_that_exists_is_said_to_exist_before_anything_else_is_found_wrong() -> None:
    wrong = NewTopic("a", num_partitions=0, replication_factor=9, configs=[("nonsense", None)])
    assert error_of(cluster(1, "a"), wrong) == ErrorCode.TOPIC_ALREADY_EXISTS


def test_the_metadata_logs_own_name_is_refused() -> None:
    assert error_of(cluster(), NewTopic("__cluster_metadata")) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_an_internal_topic_is_refused_unless_the_broker_itself_creates_it(name: str) -> None:
    records, (refused,) = create(cluster(), NewTopic(name, num_partitions=1))
    assert (refused.error, records) == (ErrorCode.INVALID_TOPIC_EXCEPTION, [])
    assert name in (refused.message or "")
    _, (made,) = create(cluster(), NewTopic(name), internal_allowed=True)
    assert made.error == ErrorCode.NONE


def test_an_internal_topic_that_exists_is_said_to_exist() -> None:
    assert error_of(cluster(1, CONSUMER_OFFSETS), NewTopic(CONSUMER_OFFSETS)) == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["__consumer.offsets", "._consumer_offsets", "__transaction.state"])
def test_a_name_that_collides_with_an_internal_topic_is_refused_before_that_topic_exists(name: str) -> None:
    assert error_of(cluster(), NewTopic(name)) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_broker_creates_an_internal_topic_even_if_an_older_release_let_a_client_create_a_colliding_name() -> None:
    image = apply(
        cluster(), [TopicCreated("__consumer.offsets", bytes(16), cluster(1, "a").topics["a"].partitions, {})]
    )
    _, (made,) = create(image, NewTopic(CONSUMER_OFFSETS), internal_allowed=True)
    assert made.error == ErrorCode.NONE


def test_an_internal_topic_gets_no_more_partitions() -> None:
    records, (result,) = create_partitions(cluster(1, CONSUMER_OFFSETS), [NewPartitions(CONSUMER_OFFSETS, 50)], CONFIG)
    assert (result.error, records) == (ErrorCode.INVALID_TOPIC_EXCEPTION, [])


def test_internal_topics_are_recognized() -> None:
    assert is_internal("__consumer_offsets")
    assert not is_internal("__mine")


@pytest.mark.parametrize("value", [" " * SETTING_VALUE_LENGTH_MAX + "1", "1" + " " * SETTING_VALUE_LENGTH_MAX])
def test_a_value_padded_to_take_memory_is_refused(value: str) -> None:
    assert error_of(cluster(), NewTopic("a", configs=[("retention.ms", value)])) == ErrorCode.INVALID_CONFIG
    assert error_of(cluster(), NewTopic("a", configs=[("retention.ms", " 1 ")])) == ErrorCode.NONE


def test_a_name_given_twice_is_refused_once_and_the_others_are_made() -> None:
    records, results = create(cluster(), NewTopic("a"), NewTopic("b"), NewTopic("a"))
    assert [(result.name, result.error) for result in results] == [
        ("b", ErrorCode.NONE),
        ("a", ErrorCode.INVALID_REQUEST),
    ]
    assert len(records) == 1


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("a", num_partitions=0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("a", num_partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("a", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", replication_factor=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", num_partitions=0, replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", configs=[("retention.ms", "1")]), ErrorCode.NONE),
        (NewTopic("a", configs=[("retention.ms", None)]), ErrorCode.INVALID_CONFIG),
        (NewTopic("a", configs=[("retention.ms", "soon")]), ErrorCode.INVALID_CONFIG),
        (NewTopic("a", configs=[("nonsense", "1")]), ErrorCode.INVALID_CONFIG),
        (NewTopic("a", num_partitions=0, configs=[("nonsense", "1")]), ErrorCode.INVALID_CONFIG),
        (NewTopic("a/b", configs=[("nonsense", "1")]), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a", configs=[("cleanup.policy", "burn")]), ErrorCode.INVALID_CONFIG),
    ],
)
def test_numbers_and_settings_are_checked_in_kafkas_order(topic: NewTopic, error: ErrorCode) -> None:
    assert error_of(cluster(3), topic) == error


@pytest.mark.parametrize(
    ("assignments", "more", "error"),
    [
        ([(0, [1, 2]), (1, [2, 3])], {}, ErrorCode.NONE),
        ([(1, [2]), (0, [1])], {}, ErrorCode.NONE),
        ([(0, [1])], {"num_partitions": 1}, ErrorCode.INVALID_REQUEST),
        ([(0, [1])], {"replication_factor": 1}, ErrorCode.INVALID_REQUEST),
        ([(0, [1]), (0, [2])], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1]), (2, [2])], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(1, [1])], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [])], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [9])], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 1])], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 2]), (1, [1])], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_an_assignment_by_hand_must_name_every_partition_once_with_known_brokers(
    assignments: Sequence[tuple[int, Sequence[int]]], more: dict[str, Any], error: ErrorCode
) -> None:
    assert error_of(cluster(3), NewTopic("a", assignments=assignments, **more)) == error


def test_an_assignment_by_hand_is_kept_and_its_first_broker_leads() -> None:
    _, (result,) = create(cluster(3), NewTopic("a", assignments=[(1, [3, 1]), (0, [2, 3])]))
    assert result.topic is not None
    assert [(each.leader, each.replicas) for each in result.topic.partitions] == [(2, (2, 3)), (3, (3, 1))]


def test_one_request_makes_only_so_many_partitions() -> None:
    topics = [NewTopic("a", num_partitions=PARTITIONS_PER_REQUEST_MAX), NewTopic("b", num_partitions=1)]
    _, results = create(cluster(), *topics)
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


def test_an_absurd_number_of_partitions_costs_nothing_to_refuse() -> None:
    assert error_of(cluster(), NewTopic("a", num_partitions=2**31 - 1)) == ErrorCode.POLICY_VIOLATION


def test_the_cluster_takes_only_so_many_partitions() -> None:
    config = dataclasses.replace(CONFIG, max_partitions=5)
    image = cluster(1, "a")
    assert error_of(image, NewTopic("b", num_partitions=4), config) == ErrorCode.POLICY_VIOLATION
    assert error_of(image, NewTopic("b", num_partitions=3), config) == ErrorCode.NONE
    _, (result,) = create_partitions(image, [NewPartitions("a", 6)], config)
    assert result.error == ErrorCode.POLICY_VIOLATION


def test_a_topic_is_deleted_by_name_or_by_id() -> None:
    image = cluster(1, "a", "b", "c")
    records, results = delete_topics(image, [("a", ZERO_UUID), (None, image.topics["b"].topic_id)])
    assert [(result.name, result.topic_id) for result in results] == [
        ("a", image.topics["a"].topic_id),
        ("b", image.topics["b"].topic_id),
    ]
    assert list(apply(image, records).topics) == ["c"]


def test_a_topic_made_again_has_another_id() -> None:
    image = cluster(1, "a")
    deleted = apply(image, delete_topics(image, [("a", ZERO_UUID)])[0])
    again = apply(deleted, create(deleted, NewTopic("a"))[0])
    assert again.topics["a"].topic_id != image.topics["a"].topic_id


def test_deletions_that_cannot_be_are_refused_one_by_one() -> None:
    image = cluster(1, "a", "b")
    id_of_b = image.topics["b"].topic_id
    cases: list[tuple[list[tuple[str | None, bytes]], list[ErrorCode]]] = [
        ([("no", ZERO_UUID)], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        ([(None, b"?" * 16)], [ErrorCode.UNKNOWN_TOPIC_ID]),
        ([(None, ZERO_UUID)], [ErrorCode.INVALID_REQUEST]),
        ([("b", id_of_b)], [ErrorCode.INVALID_REQUEST]),
        ([("a", ZERO_UUID), ("a", ZERO_UUID)], [ErrorCode.INVALID_REQUEST]),
        ([(None, id_of_b), (None, id_of_b)], [ErrorCode.INVALID_REQUEST]),
        ([(None, id_of_b), ("b", ZERO_UUID)], [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]),
        ([("no", ZERO_UUID), ("a", ZERO_UUID)], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]),
    ]
    for wanted, errors in cases:
        records, results = delete_topics(image, wanted)
        assert [result.error for result in results] == errors
        assert len(records) == errors.count(ErrorCode.NONE)


def test_a_topic_grows_and_keeps_the_partitions_it_has() -> None:
    image = cluster(3, "a")
    records, _ = create_partitions(image, [NewPartitions("a", 5)], CONFIG)
    grown = apply(image, records).topics["a"]
    assert grown.partitions[:2] == image.topics["a"].partitions
    assert len(grown.partitions) == 5


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (NewPartitions("a", 2), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", 1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", -1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("no", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (NewPartitions("a", 3, [[2]]), ErrorCode.NONE),
        (NewPartitions("a", 4, [[2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("a", 3, [[1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("a", 3, [[9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("a", 3, []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("a", 2**31 - 1), ErrorCode.POLICY_VIOLATION),
    ],
)
def test_growth_is_checked_as_kafka_does(wanted: NewPartitions, error: ErrorCode) -> None:
    records, (result,) = create_partitions(cluster(3, "a"), [wanted], CONFIG)
    assert result.error == error
    assert bool(records) == (error == ErrorCode.NONE)


def test_a_topic_asked_to_grow_twice_in_one_request_does_not_grow() -> None:
    records, results = create_partitions(cluster(1, "a"), [NewPartitions("a", 3), NewPartitions("a", 4)], CONFIG)
    assert records == []
    assert [(result.name, result.error) for result in results] == [("a", ErrorCode.INVALID_REQUEST)]


@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (3, 1), (3, 2), (3, 3), (5, 3), (6, 4)])
def test_replicas_are_spread_evenly_and_never_twice_on_a_broker(brokers: int, factor: int) -> None:
    count = brokers * (brokers - 1) * 4 if brokers > 1 else 4
    placed = place_replicas(range(brokers), count=count, replication_factor=factor, start=7)
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = [replicas[0] for replicas in placed]
    everywhere = list(itertools.chain.from_iterable(placed))
    for broker in range(brokers):
        assert leaders.count(broker) == count // brokers
        assert everywhere.count(broker) == count * factor // brokers


@pytest.mark.parametrize(("brokers", "racks", "factor"), [(4, 2, 2), (6, 3, 2), (6, 3, 3), (6, 2, 4), (9, 3, 3)])
def test_replicas_use_every_rack_before_any_twice_and_stay_even(brokers: int, racks: int, factor: int) -> None:
    rack_of = {broker: f"rack-{broker % racks}" for broker in range(brokers)}
    count = brokers * (brokers - 1) * 4
    placed = place_replicas(range(brokers), count=count, replication_factor=factor, start=7, racks=rack_of)
    assert all(len({rack_of[broker] for broker in replicas}) == min(racks, factor) for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    everywhere = Counter(itertools.chain.from_iterable(placed))
    assert set(leaders.values()) == {count // brokers}
    assert set(everywhere.values()) == {count * factor // brokers}


def test_topics_of_one_partition_do_not_all_land_on_one_broker() -> None:
    image = cluster(3)
    for number in range(6):
        image = apply(image, create(image, NewTopic(f"t{number}", num_partitions=1))[0])
    assert sorted(topic.partitions[0].leader for topic in image.topics.values()) == [1, 1, 2, 2, 3, 3]


def test_partitions_assigned_by_hand_count_as_any_others_do() -> None:
    config = dataclasses.replace(CONFIG, max_partitions=4)
    image = cluster(1, "a")
    by_hand = [NewTopic("b", assignments=[(0, [1])]), NewTopic("c", assignments=[(0, [1]), (1, [1])])]
    _, results = create(image, *by_hand, config=config)
    assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


def test_a_broker_named_twice_for_a_partition_is_named_in_the_error() -> None:
    _, (result,) = create(cluster(3), NewTopic("a", assignments=[(0, [1, 3, 3])]))
    assert "the broker 3 more than once" in (result.message or "")
