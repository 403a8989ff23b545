"""Plans of where partitions go, without a cluster."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstone.cli.cluster.plans import (
    Plan,
    changes,
    plan_document,
    plan_empty,
    plan_leaders_off,
    plan_spread,
    read_plan,
)
from flowstone.cli.cluster.state import NO_LEADER, PartitionState
from flowstone.cli.common.errors import CommandError
from flowstone.types import TopicPartition

NO_RACKS: dict[int, str | None] = {}


def states(*replicas: Sequence[int], isr: Sequence[int] | None = None) -> list[PartitionState]:
    return [
        PartitionState(TopicPartition("t", number), each[0], tuple(each), tuple(each if isr is None else isr), 1)
        for number, each in enumerate(replicas)
    ]


def moved(plan: Plan, partitions: Sequence[PartitionState]) -> int:
    """How many replicas are copied."""
    return sum(len(set(plan[each.partition]) - set(each.replicas)) for each in partitions)


def test_what_is_spread_already_stays() -> None:
    partitions = states((1, 2), (2, 3), (3, 1))
    assert changes(plan_spread(partitions, [1, 2, 3], NO_RACKS, None), partitions) == {}


def test_a_new_broker_gets_its_share_and_no_more_is_moved() -> None:
    partitions = states((1, 2), (2, 3), (3, 1), (1, 3))
    plan = plan_spread(partitions, [1, 2, 3, 4], NO_RACKS, None)
    assert Counter(node_id for replicas in plan.values() for node_id in replicas) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert moved(plan, partitions) == 2


def test_a_higher_factor_adds_replicas_and_keeps_the_leader() -> None:
    (partition,) = states((2,))
    assert plan_spread([partition], [1, 2, 3], NO_RACKS, 3)[partition.partition] == (2, 1, 3)


def test_a_lower_factor_keeps_replicas_that_are_in_sync() -> None:
    (partition,) = states((1, 2, 3), isr=(2, 3))
    assert plan_spread([partition], [1, 2, 3], NO_RACKS, 2)[partition.partition] == (2, 3)


def test_replicas_go_to_other_racks_while_there_are_some() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    plan = plan_spread(states((1, 2), (2, 1), (3, 4), (4, 3)), [1, 2, 3, 4], racks, None)
    assert all({racks[node_id] for node_id in replicas} == {"a", "b"} for replicas in plan.values())


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(CommandError, match="t-0 is to have 3 replicas, and 2 brokers are named"):
        plan_spread(states((1, 2, 3)), [1, 2], NO_RACKS, None)


replica_lists = st.lists(st.permutations(range(1, 7)).flatmap(lambda p: st.integers(1, 3).map(lambda n: p[:n])))


@given(replica_lists, st.sets(st.integers(1, 6), min_size=3), st.dictionaries(st.integers(1, 6), st.sampled_from("ab")))
def test_a_plan_has_every_partition_on_different_named_brokers(
    current: list[list[int]], brokers: set[int], racks: dict[int, str | None]
) -> None:
    partitions = states(*current)
    plan = plan_spread(partitions, sorted(brokers), racks, None)
    for each in partitions:
        replicas = plan[each.partition]
        assert len(set(replicas)) == len(replicas) == len(each.replicas)
        assert set(replicas) <= brokers


def test_an_emptied_brokers_replicas_go_to_those_that_have_fewest() -> None:
    partitions = states((1, 2), (2, 1), (3, 4))
    plan = plan_empty(partitions, 1, [2, 3, 4], NO_RACKS, Counter({1: 2, 2: 2, 3: 9, 4: 1}))
    assert plan == {TopicPartition("t", 0): (2, 4), TopicPartition("t", 1): (2, 4)}


def test_a_broker_that_others_cannot_replace_is_not_emptied() -> None:
    with pytest.raises(CommandError, match="t-0 has a replica on broker 1 and on every other one"):
        plan_empty(states((1, 2)), 1, [2], NO_RACKS, Counter())


def test_what_has_no_leader_to_be_copied_from_is_not_moved() -> None:
    lost = PartitionState(TopicPartition("t", 0), NO_LEADER, (1, 2), (1,), 1)
    with pytest.raises(CommandError, match=r"t-0 has no leader to be copied from: bring a broker of \[1\] back"):
        plan_empty([lost], 1, [2, 3], NO_RACKS, Counter())


def test_a_broker_leads_nothing_as_the_last_replica() -> None:
    partitions = states((1, 2, 3), (2, 1), (1,))
    assert plan_leaders_off(partitions, 1) == {TopicPartition("t", 0): (2, 3, 1)}


def test_a_plan_survives_its_file() -> None:
    plan = {TopicPartition("a", 0): (1, 2), TopicPartition("b", 3): (3,)}
    assert read_plan(json.dumps(plan_document(plan)), "plan.json") == plan


def test_a_plan_of_kafkas_own_tool_is_read() -> None:
    text = '{"version":1,"partitions":[{"topic":"a","partition":1,"replicas":[3,1],"log_dirs":["any","any"]}]}'
    assert read_plan(text, "plan.json") == {TopicPartition("a", 1): (3, 1)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version":2,"partitions":[]}',
        '{"version":1,"partitions":[{"topic":"a"}]}',
        '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":["x"]}]}',
        '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1]},'
        '{"topic":"a","partition":0,"replicas":[2]}]}',
    ],
)
def test_a_file_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"plan\.json"):
        read_plan(text, "plan.json")
