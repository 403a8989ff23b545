"""Large targets are stored in parts."""

from __future__ import annotations

import pytest

from flowstone.coordinator.groups.consumer import target
from flowstone.coordinator.groups.consumer.target import Target, parts_of


def a_target(member: int, partitions: int = 1) -> Target:
    return Target(f"m{member}", frozenset((bytes(16), index) for index in range(partitions)))


def sizes(*partitions: int) -> list[int]:
    """How many members each part has, of members with so many partitions each."""
    targets = [a_target(member, count) for member, count in enumerate(partitions)]
    parts = list(parts_of(targets))
    assert [each for part in parts for each in part] == targets
    return [len(part) for part in parts]


def test_a_part_has_as_many_members_and_partitions_as_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "PART_MEMBERS", 3)
    monkeypatch.setattr(target, "PART_PARTITIONS", 10)
    assert sizes() == [0]
    assert sizes(1, 1) == [2]
    assert sizes(1, 1, 1) == [3, 0]
    assert sizes(1, 1, 1, 1) == [3, 1]
    assert sizes(9, 1, 1) == [2, 1]
    assert sizes(9, 0, 1, 1) == [3, 1]
    assert sizes(5, 4, 0, 6, 4, 1) == [3, 2, 1]
    assert sizes(10, 10) == [1, 1, 0]
    assert sizes(25, 1) == [1, 1]
