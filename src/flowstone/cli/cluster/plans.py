"""Plans of where partitions should be: computed, written and read. Pure.

A plan that spreads partitions moves little: replicas stay where they are, in-sync ones first, until brokers that have
most of them give some to those that have least. A new replica goes to a rack that its partition does not use yet, where
there is one. The preferred leader, the first replica, stays while its broker has no more than its share; to change it
moves no record.

Files are those of Kafka's kafka-reassign-partitions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flowstone.cli.cluster.state import PartitionState
from flowstone.cli.common.errors import CommandError
from flowstone.types import TopicPartition

# Partition -> the brokers of its replicas, the preferred leader first.
Plan = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]

FILE_VERSION = 1


def plan_spread(
    partitions: Sequence[PartitionState], brokers: Sequence[int], racks: Racks, replication_factor: int | None
) -> Plan:
    """Spread all partitions over the brokers; factor None keeps the replica counts. Raises CommandError."""
    placing = _Placing(brokers, racks)
    kept: dict[TopicPartition, list[int]] = {}
    for each in partitions:
        factor = replication_factor or len(each.target)
        if factor > len(brokers):
            raise CommandError(
                f"{each.partition} is to have {factor} replicas, and {len(brokers)} brokers are named: name more, or "
                "give a lower --replication-factor"
            )
        kept[each.partition] = placing.keep(each, factor)
    for each in partitions:
        placing.fill(kept[each.partition], replication_factor or len(each.target))
    placing.balance(list(kept.values()))
    leaders: Counter[int] = Counter()
    leaders_max = -(-len(partitions) // len(brokers))
    return {partition: _with_leader(replicas, leaders, leaders_max) for partition, replicas in kept.items()}


def plan_empty(
    partitions: Sequence[PartitionState], broker: int, others: Sequence[int], racks: Racks, counts: Counter[int]
) -> Plan:
    """Plan to move every replica on `broker` to one of the others; `counts` is their number of replicas."""
    plan: Plan = {}
    placing = _Placing(others, racks)
    placing.counts = Counter(counts)
    for each in partitions:
        if broker not in each.target:
            continue
        if each.is_offline:
            raise CommandError(
                f"{each.partition} has no leader to be copied from: bring a broker of {list(each.isr)} back first"
            )
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
    """Make `broker` the last replica of each partition, so that it is the preferred leader of none with others."""
    return {
        each.partition: (*(node_id for node_id in each.target if node_id != broker), broker)
        for each in partitions
        if broker in each.target and len(each.target) > 1 and broker in (each.target[0], each.leader)
    }


class _Placing:
    """The number of replicas of each broker in the plan so far."""

    def __init__(self, brokers: Sequence[int], racks: Racks) -> None:
        self._brokers, self._racks = brokers, racks
        self.counts: Counter[int] = Counter()

    def keep(self, partition: PartitionState, factor: int) -> list[int]:
        """Return the replicas that may stay where they are, in their order."""
        kept: list[int] = []
        for node_id in sorted(partition.target, key=lambda each: each not in partition.isr):
            if node_id in self._brokers and len(kept) < factor and self._is_new_rack(node_id, kept):
                kept.append(node_id)
                self.counts[node_id] += 1
        return [node_id for node_id in partition.target if node_id in kept]

    def fill(self, replicas: list[int], factor: int) -> None:
        while len(replicas) < factor:
            free = [node_id for node_id in self._brokers if node_id not in replicas]
            chosen = min(free, key=lambda each: (not self._is_new_rack(each, replicas), self.counts[each]))
            replicas.append(chosen)
            self.counts[chosen] += 1

    def balance(self, plan: Sequence[list[int]]) -> None:
        """Move replicas from brokers with most to those with least, one at a time, while that evens them out."""
        while self._even_out(plan):
            pass

    def _even_out(self, plan: Sequence[list[int]]) -> bool:
        by_count = sorted(self._brokers, key=lambda each: self.counts[each])
        for giver in reversed(by_count):
            for taker in by_count:
                if self.counts[giver] - self.counts[taker] <= 1:
                    break
                if self._hand_over(plan, giver, taker):
                    return True
        return False

    def _hand_over(self, plan: Sequence[list[int]], giver: int, taker: int) -> bool:
        """Move one replica from `giver` to `taker`, preferably not a preferred leader; return whether there was one."""
        movable = [
            each for each in plan if giver in each and taker not in each and self._may_replace(each, giver, taker)
        ]
        if not movable:
            return False
        replicas = next((each for each in movable if each[0] != giver), movable[0])
        replicas[replicas.index(giver)] = taker
        self.counts[giver] -= 1
        self.counts[taker] += 1
        return True

    def _may_replace(self, replicas: Sequence[int], giver: int, taker: int) -> bool:
        rest = {self._racks.get(each) for each in replicas if each != giver}
        return self._racks.get(taker) not in rest or self._racks.get(giver) in rest

    def _is_new_rack(self, node_id: int, replicas: Sequence[int]) -> bool:
        """Return whether a broker's rack has none of the replicas, or there is no such rack left."""
        used = {self._racks.get(each) for each in replicas}
        return self._racks.get(node_id) not in used or used.issuperset(self._racks.get(each) for each in self._brokers)


def _with_leader(replicas: Sequence[int], leaders: Counter[int], leaders_max: int) -> tuple[int, ...]:
    leader = replicas[0]
    if leaders[leader] >= leaders_max:
        leader = min(replicas, key=lambda each: leaders[each])
    leaders[leader] += 1
    return (leader, *(each for each in replicas if each != leader))


def changes(plan: Plan, partitions: Sequence[PartitionState]) -> Plan:
    """Return the part of the plan that differs from the present state."""
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
    """Parse a plan. Raises CommandError if the file is not one."""
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
