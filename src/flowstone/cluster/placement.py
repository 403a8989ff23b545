"""Where a new partition's replicas go: round robin over the brokers, so that leaders and followers spread evenly."""

from __future__ import annotations

from collections.abc import Sequence


def place_replicas(brokers: Sequence[int], *, count: int, replication_factor: int, start: int) -> list[tuple[int, ...]]:
    """Replicas, leader first, of `count` partitions of which the first one's leader is `brokers[start]`.

    Leaders go round in order. The followers' distance from their leader grows by one each time round, so that the
    partitions of a lost broker do not all fall to its neighbour.
    """
    size = len(brokers)
    assert 1 <= replication_factor <= size
    placed = []
    for turn in range(start, start + count):
        leader, shift = turn % size, turn // size
        followers = [(leader + 1 + (shift + step) % (size - 1)) % size for step in range(replication_factor - 1)]
        placed.append(tuple(brokers[index] for index in (leader, *followers)))
    return placed
