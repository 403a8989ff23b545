"""Lists of ranges of offsets, joined where they touch or overlap. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowstone.coordinator.share.records import StateBatch

Span = tuple[int, int]


def joined_spans(spans: list[Span]) -> list[Span]:
    """Return the union of the spans as disjoint, sorted spans that do not touch each other."""
    if len(spans) == 1:
        return spans
    joined: list[Span] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def spans_of(offsets: Sequence[int]) -> list[Span]:
    """Return offsets, which are in order, as spans that do not touch."""
    spans: list[Span] = []
    if not offsets:
        return spans
    first = before = offsets[0]
    for offset in offsets:
        if offset > before + 1:
            spans.append((first, before))
            first = offset
        before = offset
    spans.append((first, before))
    return spans


def count_of(spans: Iterable[Span]) -> int:
    """Return how many offsets disjoint spans have."""
    return sum(last - first + 1 for first, last in spans)


def without(spans: Iterable[Span], removed: Iterable[Span]) -> list[Span]:
    """Return the offsets of disjoint spans that are not in the others, which are in order and disjoint too."""
    left: list[Span] = []
    removed = list(removed)
    for first, last in spans:
        for other_first, other_last in removed:
            if other_last < first or other_first > last:
                continue
            if first < other_first:
                left.append((first, other_first - 1))
            first = other_last + 1
        if first <= last:
            left.append((first, last))
    return left


def joined_batches(batches: list[StateBatch]) -> list[StateBatch]:
    """Return the batches, which are in order, with neighbours that are alike as one."""
    joined = batches[:1]
    for batch in batches[1:]:
        before = joined[-1]
        if before.last_offset + 1 == batch.first_offset and before[2:] == batch[2:]:
            joined[-1] = before._replace(last_offset=batch.last_offset)
        else:
            joined.append(batch)
    return joined
