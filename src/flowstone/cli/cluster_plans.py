"""Plans of where partitions should be: made, written and read. Pure.

A plan that spreads partitions moves as little as it can: a replica stays where it is while its broker has no more than
its share, in-sync ones first. What must move goes to the brokers with the fewest replicas, to a rack the partition does
not use yet where there is one. The preferred leader, the first replica, is one of those with the fewest leaderships; to
change it moves no record.

Files are those of Kafka's kafka-reassign-partitions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flowstone.cli.cluster_state import PartitionState
from flowstone.cli.errors import CommandError
from flowstone.types import TopicPartition

# Partition -> the brokers of its replicas, the preferred leader first.
Plan = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]

FILE_VERSION = 1


def plan_spread(
    partitions: Sequence[PartitionState], brokers: Sequence[int], racks: Racks, replication_factor: int | None
) -> Plan:
    """All of them evenly over the brokers; None: with as many replicas as each has. CommandError: too few brokers."""
    plan: Plan = {}
    factors = {each.partition: replication_factor or len(each.target) for each in partitions}
    for partition, factor in factors.items():
        if factor > len(brokers):
            raise CommandError(
                f"{partition} is to have {factor} replicas, and {len(brokers)} brokers are named: name more, or give "
                "a lower --replication-factor"
            )
    total = sum(factors.values())
    placing = _Placing(brokers, racks, replicas_max=-(-total // len(brokers)))
    kept = {each.partition: placing.keep(each, factors[each.partition]) for each in partitions}
    for partition, replicas in kept.items():
        placing.fill(replicas, factors[partition])
    leaders: Counter[int] = Counter()
    leaders_max = -(-len(partitions) // len(brokers))
    for each in partitions:
        plan[each.partition] = _with_leader(kept[each.partition], leaders, leaders_max)
    return plan


def plan_empty(
    partitions: Sequence[PartitionState], broker: int, others: Sequence[int], racks: Racks, counts: Counter[int]
) -> Plan:
    """No replica left on `broker`: each goes to one of the others, of which `counts` tells how many they have."""
    plan: Plan = {}
    placing = _Placing(others, racks)
    placing.counts = Counter(counts)
    for each in partitions:
        if broker not in each.target:
            continue
        kept = [node_id for node_id in each.target if node_id != broker]
        if not set(others) - set(kept):
            raise CommandError(
                f"{each.partition} has a replica on broker {broker} and on every other one that is alive: start "
                f"another broker, or lower its replication factor with `flowstone cluster reassign`"
            )
        placing.fill(kept, len(each.target))
        plan[each.partition] = tuple(kept)
    return plan


def plan_leaders_off(partitions: Sequence[PartitionState], broker: int) -> Plan:
    """`broker` as the last replica of each: it is nobody's preferred leader, unless it is the only replica."""
    return {
        each.partition: (*(node_id for node_id in each.target if node_id != broker), broker)
        for each in partitions
        if broker in each.target and len(each.target) > 1 and broker in (each.target[0], each.leader)
    }


class _Placing:
    """How many replicas each broker has in the plan so far."""

    def __init__(self, brokers: Sequence[int], racks: Racks, replicas_max: int = 0) -> None:
        self._brokers, self._racks, self._replicas_max = brokers, racks, replicas_max
        self.counts: Counter[int] = Counter()

    def keep(self, partition: PartitionState, factor: int) -> list[int]:
        kept: list[int] = []
        for node_id in sorted(partition.target, key=lambda each: each not in partition.isr):
            has_room = self.counts[node_id] < self._replicas_max
            if node_id in self._brokers and has_room and len(kept) < factor and self._is_new_rack(node_id, kept):
                kept.append(node_id)
                self.counts[node_id] += 1
        return [node_id for node_id in partition.target if node_id in kept]

    def fill(self, replicas: list[int], factor: int) -> None:
        while len(replicas) < factor:
            free = [node_id for node_id in self._brokers if node_id not in replicas]
            chosen = min(free, key=lambda each: (not self._is_new_rack(each, replicas), self.counts[each]))
            replicas.append(chosen)
            self.counts[chosen] += 1

    def _is_new_rack(self, node_id: int, replicas: Sequence[int]) -> bool:
        """Whether it stands where none of the replicas does; or there is no such place left."""
        used = {self._racks.get(each) for each in replicas}
        return self._racks.get(node_id) not in used or used.issuperset(self._racks.get(each) for each in self._brokers)


def _with_leader(replicas: Sequence[int], leaders: Counter[int], leaders_max: int) -> tuple[int, ...]:
    leader = replicas[0]
    if leaders[leader] >= leaders_max:
        leader = min(replicas, key=lambda each: leaders[each])
    leaders[leader] += 1
    return (leader, *(each for each in replicas if each != leader))


def changes(plan: Plan, partitions: Sequence[PartitionState]) -> Plan:
    """What of the plan is not so already."""
    targets = {each.partition: each.target for each in partitions}
    return {partition: replicas for partition, replicas in plan.items() if targets.get(partition) != replicas}


# Files


def plan_document(plan: Plan) -> dict[str, Any]:
    return {
        "version": FILE_VERSION,
        "partitions": [
            {"topic": partition.topic, "partition": partition.partition, "replicas": list(replicas)}
            for partition, replicas in plan.items()
        ],
    }


def read_plan(text: str, path: str) -> Plan:
    """CommandError if it is no such file."""
    try:
        document = json.loads(text)
        if document["version"] != FILE_VERSION:
            raise CommandError(f"{path} is a plan of version {document['version']}: {FILE_VERSION} is known")
        plan: Plan = {}
        for each in document["partitions"]:
            partition = TopicPartition(str(each["topic"]), int(each["partition"]))
            if partition in plan:
                raise CommandError(f"{path} names {partition} twice")
            plan[partition] = tuple(map(int, each["replicas"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f'{path} is no plan ({error!r}): expected {{"version": 1, "partitions": [{{"topic": …, "partition": …, '
            '"replicas": […]}]}'
        ) from None
    return plan
