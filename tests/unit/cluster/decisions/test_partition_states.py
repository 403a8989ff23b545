"""What deaths, returns and reassignments make of a partition's state, and which epochs a change raises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowstone.cluster.decisions.partition_states import (
    PartitionChanges,
    TopicRules,
    in_sync_with,
    is_settled,
    settle,
    withdraw,
)
from flowstone.cluster.image.cluster_image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.image.records import PartitionChanged


def state(leader: int = 1, replicas: str = "123", isr: str = "123", **more: Any) -> PartitionImage:
    changes = {name: brokers(text) for name, text in more.items()}
    return PartitionImage(leader, 5, 7, brokers(replicas), brokers(isr), **changes)


def brokers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text))


def shown(made: PartitionImage) -> tuple[int, str, str]:
    return made.leader, "".join(map(str, made.replicas)), "".join(map(str, made.isr))


@pytest.mark.parametrize(
    ("before", "alive", "after"),
    [
        (state(), "123", (1, "123", "123")),
        (state(), "12", (1, "123", "12")),
        (state(), "23", (2, "123", "23")),
        (state(isr="31"), "23", (3, "123", "3")),
        (state(replicas="321", leader=1), "23", (3, "321", "23")),
        (state(isr="1"), "23", (NO_LEADER, "123", "1")),
        (state(), "", (NO_LEADER, "123", "123")),
        (state(NO_LEADER, isr="1"), "123", (1, "123", "1")),
    ],
)
def test_the_first_living_replica_that_is_in_sync_leads(
    before: PartitionImage, alive: str, after: tuple[int, str, str]
) -> None:
    assert shown(settle(before, set(brokers(alive)))) == after


def test_a_replica_that_lacks_records_leads_only_where_that_is_allowed() -> None:
    before = state(isr="1")
    assert settle(before, {2, 3}).leader == NO_LEADER
    assert shown(settle(before, {2, 3}, unclean=True)) == (2, "123", "2")
    assert shown(settle(before, {1, 2, 3}, unclean=True)) == (1, "123", "1")
    coming = state(replicas="213", isr="1", adding="2")
    assert shown(settle(coming, {2, 3}, unclean=True)) == (3, "213", "3")
    assert shown(settle(coming, {2}, unclean=True)) == (2, "213", "2")
    leaderless = replace(before, leader=NO_LEADER)
    assert settle(leaderless, set(), unclean=True) is leaderless


@pytest.mark.parametrize(
    ("before", "min_insync", "after"),
    [
        (state(replicas="14", isr="14", adding="4", removing="1"), 1, (4, "4", "4")),
        (state(replicas="14", isr="1", adding="4", removing="1"), 1, (1, "14", "1")),
        (state(replicas="14", isr="14", adding="4", removing="1"), None, (1, "14", "14")),
        (state(replicas="1234", isr="1234", adding="4", removing="1"), 1, (2, "234", "234")),
        (state(replicas="1234", isr="124", adding="4", removing="1"), 1, (2, "234", "24")),
        (state(replicas="1234", isr="124", adding="4", removing="1"), 3, (1, "1234", "124")),
        (state(replicas="123", isr="12", removing="1"), 1, (1, "123", "12")),
        (state(replicas="123", isr="123", removing="1"), 9, (2, "23", "23")),
        (state(replicas="12", isr="1", removing="1"), 1, (1, "12", "1")),
        (state(replicas="12", isr="12", adding="2"), 1, (1, "12", "12")),
    ],
)
def test_a_reassignment_ends_when_enough_of_the_target_are_in_sync(
    before: PartitionImage, min_insync: int | None, after: tuple[int, str, str]
) -> None:
    made = settle(before, {1, 2, 3, 4}, min_insync=min_insync)
    assert shown(made) == after
    is_complete = shown(made)[1] != shown(before)[1] or (bool(before.adding) and not before.removing)
    assert (made.adding, made.removing) == (((), ()) if is_complete else (before.adding, before.removing))


@pytest.mark.parametrize(
    ("before", "alive", "expected"),
    [
        (state(), "123", True),
        (state(isr="12"), "12", True),
        (state(), "12", False),
        (state(), "23", False),
        (state(NO_LEADER), "123", False),
        (state(adding="3"), "123", False),
        (state(removing="3"), "123", False),
    ],
)
def test_a_settled_state_needs_no_change(before: PartitionImage, alive: str, expected: bool) -> None:
    living = set(brokers(alive))
    assert is_settled(before, living) is expected
    if expected:
        assert settle(before, living, min_insync=1) == before


def test_a_replica_withdraws_unless_it_is_the_only_one() -> None:
    assert withdraw(state(), 2).isr == (1, 3)
    assert withdraw(state(isr="2"), 2).isr == (2,)
    assert withdraw(state(isr="13"), 2).isr == (1, 3)


TOPIC = TopicImage("t", b"t" * 16, (state(), state(2, isr="2")))


def test_the_partitions_that_a_replica_is_in_sync_with_are_found() -> None:
    image = ClusterImage(topics={"t": TOPIC})
    assert [(topic.name, partition) for topic, partition, _ in in_sync_with(image, 1)] == [("t", 0)]
    assert [each[1:] for each in in_sync_with(image, 2)] == [(0, TOPIC.partitions[0]), (1, TOPIC.partitions[1])]


@pytest.mark.parametrize(
    ("changes", "leads_anew", "epochs"),
    [
        ({}, False, None),
        ({}, True, (6, 8)),
        ({"isr": (1, 2)}, False, (5, 8)),
        ({"leader": 2}, False, (6, 8)),
        ({"leader": NO_LEADER}, False, (6, 8)),
        ({"replicas": (1, 2), "isr": (1, 2)}, False, (6, 8)),
        ({"replicas": (1, 2, 3, 4)}, False, (5, 8)),
        ({"leader": 2, "isr": (2,)}, True, (6, 8)),
    ],
)
def test_a_change_raises_the_partitions_epoch_and_another_leader_the_leaders(
    changes: dict[str, Any], leads_anew: bool, epochs: tuple[int, int] | None
) -> None:
    made = PartitionChanges()
    after = made.put(TOPIC, 0, replace(TOPIC.partitions[0], **changes), leads_anew=leads_anew)
    if epochs is None:
        assert (after, made.records) == (TOPIC.partitions[0], [])
        return
    assert (after.leader_epoch, after.partition_epoch) == epochs
    assert made.records == [PartitionChanged(TOPIC.topic_id, 0, after)]
    assert made.state(TOPIC, 0) == after
    assert made.state(TOPIC, 1) == TOPIC.partitions[1]
    again = made.put(TOPIC, 0, replace(after, isr=after.isr[:1], leader=after.isr[0]), leads_anew=True)
    assert (again.leader_epoch, again.partition_epoch) == (epochs[0] + 1, 9)
    assert len(made.records) == 2


def test_a_topics_own_rules_come_before_the_brokers() -> None:
    own = replace(TOPIC, configs={"unclean.leader.election.enable": "true", "min.insync.replicas": "3"})
    rules = TopicRules(ClusterImage(), {"min.insync.replicas": "2"}, 1)
    assert [(rules.allows_unclean(each), rules.min_insync(each)) for each in (TOPIC, own)] == [(False, 2), (True, 3)]
    rules = TopicRules(ClusterImage(), {"unclean.leader.election.enable": "true"}, 1)
    assert (rules.allows_unclean(TOPIC), rules.min_insync(TOPIC)) == (True, 1)
