"""Lists of ranges of offsets, joined where they touch or overlap. Pure."""

from __future__ import annotations

from flowstone.coordinator.share.records import StateBatch

Span = tuple[int, int]


def joined_spans(spans: list[Span]) -> list[Span]:
    """Return the offsets of all spans as spans in order that do not touch."""
    if len(spans) == 1:
        return spans
    joined: list[Span] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


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
