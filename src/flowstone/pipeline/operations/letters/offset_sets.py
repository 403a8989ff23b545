"""Sets of offsets by partition, as ranges, in which handled dead letters are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# JSON: the partition to [first, last] of each range, in order.
Ranges = dict[str, list[list[int]]]


def of(offsets: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges of (partition, offset) pairs."""
    found: Ranges = {}
    for partition, offset in sorted(set(offsets)):
        ranges = found.setdefault(str(partition), [])
        if ranges and ranges[-1][1] == offset - 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    return found


def union(one: Mapping[str, Any], other: Mapping[str, Any]) -> Ranges:
    """Return the ranges of both; ranges are joined if they touch."""
    found: Ranges = {}
    for partition in sorted({*one, *other}, key=int):
        ranges: list[list[int]] = []
        for first, last in sorted([*one.get(partition, ()), *other.get(partition, ())]):
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1][1] = max(ranges[-1][1], last)
            else:
                ranges.append([first, last])
        found[partition] = ranges
    return found


def contains(ranges: Mapping[str, Any], partition: int, offset: int) -> bool:
    return any(first <= offset <= last for first, last in ranges.get(str(partition), ()))


def count(ranges: Mapping[str, Any]) -> int:
    return sum(last - first + 1 for each in ranges.values() for first, last in each)


def range_count(ranges: Mapping[str, Any]) -> int:
    return sum(map(len, ranges.values()))
