"""The assignors of consumer groups: exact assignments, what stays with its owner, and how few partitions move."""

from __future__ import annotations

from random import Random

import pytest

from flowstone.coordinator.groups.consumer.assignors import (
    ASSIGNORS,
    Assigning,
    Assignment,
    Subscriber,
    assign_ranges,
    assign_uniformly,
)

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def member(name: str, *topics: bytes, had: str = "", instance: str | None = None) -> Subscriber:
    return Subscriber(name, instance, frozenset(topics), frozenset(places(had)))


def places(text: str) -> set[tuple[bytes, int]]:
    """Partitions written like a0 b3."""
    return {(each[0].encode() * 16, int(each[1:])) for each in text.split()}


def finished(steps: Assigning) -> Assignment:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assignment: Assignment = end.value
            return assignment


def shown(steps: Assigning) -> dict[str, str]:
    return {
        name: " ".join(f"{topic[:1].decode()}{at}" for topic, at in sorted(own))
        for name, own in finished(steps).items()
    }


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, {"m1": "", "m2": "", "m3": ""}),
        (1, {"m1": "a0", "m2": "", "m3": ""}),
        (3, {"m1": "a0", "m2": "a1", "m3": "a2"}),
        (5, {"m1": "a0 a1", "m2": "a2 a3", "m3": "a4"}),
        (7, {"m1": "a0 a1 a2", "m2": "a3 a4", "m3": "a5 a6"}),
    ],
)
def test_ranges_go_to_members_in_order(count: int, expected: dict[str, str]) -> None:
    members = [member(name, A) for name in ("m3", "m1", "m2")]
    assert shown(assign_ranges(members, {A: count})) == expected


def test_ranges_are_counted_for_each_topic_and_its_own_subscribers() -> None:
    members = [member("m1", A), member("m2", A, B), member("m3", B)]
    assert shown(assign_ranges(members, {A: 3, B: 3})) == {"m1": "a0 a1", "m2": "a2 b0 b1", "m3": "b2"}
    assert shown(assign_ranges(members, {B: 2})) == {"m1": "", "m2": "b0", "m3": "b1"}


def test_members_with_an_instance_id_come_first_and_by_it() -> None:
    members = [member("m1", A), member("m2", A, instance="y"), member("m3", A, instance="x")]
    assert shown(assign_ranges(members, {A: 3})) == {"m3": "a0", "m2": "a1", "m1": "a2"}


def test_without_members_or_partitions_nothing_is_assigned() -> None:
    assert finished(assign_uniformly([], {A: 3})) == {}
    assert finished(assign_ranges([], {A: 3})) == {}
    assert finished(assign_uniformly([member("m1")], {A: 3})) == {"m1": set()}
    assert finished(assign_uniformly([member("m1", A), member("m2", A)], {})) == {"m1": set(), "m2": set()}


def test_partitions_of_all_topics_are_dealt_out_together() -> None:
    members = [member("m1", A, B), member("m2", A, B)]
    assert shown(assign_uniformly(members, {A: 3, B: 2})) == {"m1": "a0 a1 a2", "m2": "b0 b1"}


def test_a_member_keeps_what_it_had_up_to_its_share() -> None:
    members = [member("m1", A, had="a0 a1 a2 a3"), member("m2", A)]
    assert shown(assign_uniformly(members, {A: 4})) == {"m1": "a0 a1", "m2": "a2 a3"}


def test_the_larger_share_goes_to_the_member_that_had_more() -> None:
    members = [member("m1", A, had="a0"), member("m2", A, had="a1 a2"), member("m3", A)]
    assert shown(assign_uniformly(members, {A: 4})) == {"m1": "a0", "m2": "a1 a2", "m3": "a3"}
    members = [member("m1", A), member("m2", A), member("m3", A)]
    assert shown(assign_uniformly(members, {A: 4})) == {"m1": "a0 a1", "m2": "a2", "m3": "a3"}


def test_what_is_gone_or_claimed_twice_is_given_once() -> None:
    members = [member("m1", A, had="a0 a9 b0"), member("m2", A, had="a0 a1")]
    assert shown(assign_uniformly(members, {A: 2})) == {"m2": "a0", "m1": "a1"}


def test_different_subscriptions_are_balanced_and_the_topic_with_fewest_subscribers_comes_first() -> None:
    members = [member("m1", A), member("m2", A, C)]
    assert shown(assign_uniformly(members, {A: 2})) == {"m1": "a0", "m2": "a1"}
    members = [member("m1", A, B), member("m2", B)]
    assert shown(assign_uniformly(members, {A: 2, B: 2})) == {"m1": "a0 a1", "m2": "b0 b1"}
    members = [member("m1", A), member("m2", A, B), member("m3", B, C)]
    assert shown(assign_uniformly(members, {A: 2, B: 2, C: 1})) == {"m1": "a0", "m2": "a1 b0", "m3": "b1 c0"}


def test_with_different_subscriptions_only_the_surplus_moves() -> None:
    members = [member("m1", A, B, had="a0 a1 a2 a3 b0"), member("m2", A)]
    assert shown(assign_uniformly(members, {A: 4, B: 1})) == {"m1": "a2 a3 b0", "m2": "a0 a1"}
    members = [member("m1", A, B, had="a0 a1"), member("m2", A, had="a2")]
    assert shown(assign_uniformly(members, {A: 3, B: 0})) == {"m1": "a0 a1", "m2": "a2"}


def test_with_different_subscriptions_only_what_is_subscribed_and_exists_is_kept() -> None:
    members = [member("m1", A, had="b0 a5 a0"), member("m2", A, B, had="a0 a1 b0")]
    assert shown(assign_uniformly(members, {A: 2, B: 1})) == {"m1": "a0", "m2": "a1 b0"}


@pytest.mark.parametrize("seed", range(30))
def test_an_assignment_is_complete_valid_and_as_even_as_single_moves_can_make_it(seed: int) -> None:
    random = Random(seed)
    counts = {topic: random.randrange(0, 9) for topic in (A, B, C)}
    everything = {(topic, at) for topic, count in counts.items() for at in range(count)}
    members = [
        Subscriber(
            f"m{number}",
            None,
            frozenset(random.sample([A, B, C], random.randrange(1, 4))),
            frozenset(random.sample(sorted(everything), min(len(everything), 3))),
        )
        for number in range(random.randrange(1, 6))
    ]
    topics = {topic for each in members for topic in each.topic_ids}
    for name, assign in ASSIGNORS.items():
        assignment = finished(assign(members, counts))
        given = [place for own in assignment.values() for place in own]
        assert sorted(given) == sorted(place for place in everything if place[0] in topics), name
        assert all(topic in each.topic_ids for each in members for topic, _ in assignment[each.member_id])
    balanced = finished(assign_uniformly(members, counts))
    for own in balanced.values():
        for topic, _ in own:
            assert len(own) <= 1 + min(len(balanced[each.member_id]) for each in members if topic in each.topic_ids)


def test_an_assignment_stays_as_it_is_while_nothing_changes() -> None:
    members = [member("m1", A, B), member("m2", B, C), member("m3", A, B, C), member("m4", C)]
    counts = {A: 5, B: 7, C: 4}
    first = finished(assign_uniformly(members, counts))
    kept = [each._replace(previous=frozenset(first[each.member_id])) for each in members]
    again = finished(assign_uniformly(kept, counts))
    assert again == first
