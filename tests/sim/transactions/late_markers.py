"""A decided transaction is ended soon, whatever brokers do that have no part in it any more.

A transaction needs its coordinator, the leaders of its partitions, and those in sync with them. While all of these are
well and reach each other, its end markers must be written in a few seconds: nothing may wait for a former leader that
is paused, cut off or without power.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowstone.cluster.decisions.topic_names import TRANSACTION_STATE
from flowstone.cluster.image.cluster_image import NO_LEADER
from flowstone.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster, Machine

# A shard that was loaded again a second later, and a high watermark that waits a second for a follower, are in time.
LATE_S_MAX = 3.0

# The transactional id, the time of its decision, its coordinator, and those that its end needs.
Ending = tuple[str, int, str, tuple[str, ...]]


class LateMarkers:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[str] = []
        # Since when everything is there that the end of a decided transaction needs.
        self._since_s: dict[Ending, float] = {}

    def look(self) -> None:
        now_s = self._cluster.loop.time()
        self._since_s = {each: self._since_s.get(each, now_s) for each in self._possible(now_s)}
        for (transactional_id, _, coordinator, needed), since_s in self._since_s.items():
            if now_s - since_s > LATE_S_MAX and not self.violations:
                told = (
                    f"late markers of {transactional_id}: {coordinator} has decided, and {', '.join(needed)} are well"
                )
                self.violations.append(told)
                self._cluster.note(told)

    def _possible(self, now_s: float) -> Iterator[Ending]:
        """The decided transactions that nothing keeps from being ended."""
        for machine in self._cluster.machines:
            if machine.app is None or not machine.is_serving:
                continue
            for index, shard in machine.app.services.transactions._host.shards():
                for stored in shard.machine._state.transactions.values() if shard.machine is not None else ():
                    if not stored.state.is_prepared:
                        continue
                    places = [TopicPartition(TRANSACTION_STATE, index), *stored.partitions]
                    needed = self._needed(machine, places)
                    if needed is not None and self._are_well(needed, now_s):
                        names = tuple(each.name for each in needed)
                        yield stored.transactional_id, stored.last_update_ms, machine.name, names

    def _needed(self, coordinator: Machine, places: list[TopicPartition]) -> list[Machine] | None:
        """The machines whose part it is to end the transaction; None if a partition has no leader."""
        node_ids = {coordinator.node_id}
        for place in places:
            state = self._cluster.image.partition(place)
            if state is None or state.leader == NO_LEADER:
                return None
            node_ids |= {state.leader, *state.isr}
        return [self._cluster.machines[node_id - 1] for node_id in sorted(node_ids)]

    def _are_well(self, machines: list[Machine], now_s: float) -> bool:
        return all(_is_well(each, now_s) for each in machines) and all(
            not link.is_cut and not link._held
            for one, other in itertools.permutations(machines, 2)
            for link in [self._cluster.network.link(one.name, other.name)]
        )


def _is_well(machine: Machine, now_s: float) -> bool:
    process, disk = machine.process, machine.disk
    return (
        machine.is_serving
        and process is not None
        and not process.is_paused
        and machine.lease_until_s > now_s
        and not machine._is_cut_off
        and not disk.is_full
        and disk.slowness == 1.0
    )
