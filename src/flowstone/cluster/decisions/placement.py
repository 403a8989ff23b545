"""Places a new partition's replicas: round robin over the brokers, so that leaders and followers spread evenly.

If brokers have racks, a partition's replicas use as many racks as there are before any is used twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

_NO_RACKS: Mapping[int, str | None] = MappingProxyType({})


def place_replicas(
    brokers: Sequence[int],
    *,
    count: int,
    replication_factor: int,
    start: int,
    racks: Mapping[int, str | None] = _NO_RACKS,
) -> list[tuple[int, ...]]:
    """Return the replicas, leader first, of `count` partitions; the leader of the first is the broker at `start`.

    Leaders go round in order, rack after rack. The followers' distance from their leader grows by one each time round,
    so that the partitions of a lost broker do not all fall to its neighbour.
    """
    size = len(brokers)
    assert 1 <= replication_factor <= size
    order = _interleaved(brokers, racks)
    placed = []
    for turn in range(start, start + count):
        leader, shift = turn % size, turn // size
        others = [order[(leader + 1 + (shift + step) % (size - 1)) % size] for step in range(size - 1)]
        placed.append(_spread(order[leader], others, replication_factor, racks))
    return placed


def _interleaved(brokers: Sequence[int], racks: Mapping[int, str | None]) -> list[int]:
    """Return one broker of each rack, then the next of each, so that neighbours are in different racks. None is a rack
    too.
    """
    by_rack: dict[str, list[int]] = defaultdict(list)
    for node_id in brokers:
        by_rack[racks.get(node_id) or ""].append(node_id)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [node_id for each in rounds for node_id in each if node_id is not None]


def _spread(leader: int, others: list[int], factor: int, racks: Mapping[int, str | None]) -> tuple[int, ...]:
    """Return the leader and the first of the others, skipping those in used racks while any rack is unused."""
    chosen, used = [leader], {racks.get(leader)}
    while len(chosen) < factor:
        follower = next((node_id for node_id in others if racks.get(node_id) not in used), None)
        if follower is None:
            used.clear()  # all racks are used: begin again
            continue
        others.remove(follower)
        chosen.append(follower)
        used.add(racks.get(follower))
    return tuple(chosen)
