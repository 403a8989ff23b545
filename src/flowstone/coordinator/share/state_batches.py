"""Changes of a sorted list of disjoint ranges of offsets with the same two figures for all of a range's offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import TypeVar

from flowstone.coordinator.share.records import LetterRange, StateBatch

Ranged = TypeVar("Ranged", StateBatch, LetterRange)

_first, _last = itemgetter(0), itemgetter(1)


def overlay(batches: list[Ranged], updates: Iterable[Ranged]) -> None:
    """Put each update over what the list has for its offsets, and join neighbours that are alike."""
    for update in updates:
        _put(batches, update)


def remove(batches: list[Ranged], first: int, last: int) -> None:
    """Remove these offsets."""
    begin = bisect_left(batches, first, key=_last)
    end = bisect_right(batches, last, lo=begin, key=_first)
    if begin < end:
        left, right = batches[begin], batches[end - 1]
        kept = [left._replace(last_offset=first - 1)] if left.first_offset < first else []
        if right.last_offset > last:
            kept.append(right._replace(first_offset=last + 1))
        batches[begin:end] = kept


def cut_before(batches: list[Ranged], start_offset: int) -> None:
    """Remove everything below `start_offset`."""
    if not batches or batches[0].first_offset >= start_offset:
        return
    kept_from = bisect_left(batches, start_offset, key=_last)
    del batches[:kept_from]
    if batches and batches[0].first_offset < start_offset:
        batches[0] = batches[0]._replace(first_offset=start_offset)


def _put(batches: list[Ranged], update: Ranged) -> None:
    first, last = update[:2]
    begin = bisect_left(batches, first, key=_last)
    end = bisect_right(batches, last, lo=begin, key=_first)
    parts = []
    if begin < end:
        left, right = batches[begin], batches[end - 1]
        if left.first_offset < first:
            parts.append(left._replace(last_offset=first - 1))
        parts.append(update)
        if right.last_offset > last:
            parts.append(right._replace(first_offset=last + 1))
    else:
        parts.append(update)
    # Neighbours that are alike become one, so that the list does not grow with the number of updates.
    if begin > 0:
        begin -= 1
        parts.insert(0, batches[begin])
    if end < len(batches):
        parts.append(batches[end])
        end += 1
    batches[begin:end] = _joined(parts)


def _joined(parts: list[Ranged]) -> list[Ranged]:
    joined = parts[:1]
    for part in parts[1:]:
        before = joined[-1]
        if before.last_offset + 1 == part.first_offset and before[2:] == part[2:]:
            joined[-1] = before._replace(last_offset=part.last_offset)
        else:
            joined.append(part)
    return joined
