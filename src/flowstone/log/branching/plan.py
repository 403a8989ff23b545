"""Plan of a branch: the segments that it shares, and the one of which it copies the beginning. Changes nothing.

A branch ends at an offset. The segments that end at or before it are taken whole, by name; the one in which it lies, if
any, is taken up to the batch that holds it. A caller whose branch ends where the log ends rolls the log first, so that
there is no such segment.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.segment import Segment
from flowstone.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, IndexEntries, SealedIndex
from flowstone.log.segments.transaction_index import aborts_below


class WholeSegment(NamedTuple):
    base_offset: int
    created_ms: int
    is_durable: bool
    size_bytes: int
    # None: the size is not known without a look at the file
    offset_index_bytes: int | None
    time_index_bytes: int | None
    has_transaction_index: bool


class CutSegment(NamedTuple):
    """A segment up to the position where the batch begins that contains, or follows, the branch's end."""

    base_offset: int
    created_ms: int
    position: int
    batch_bytes: int  # of the batch at that position
    index_interval_bytes: int
    # The entries up to the position if the segment is active; a sealed segment's entries are in its files.
    offsets: IndexEntries | None
    times: IndexEntries | None
    aborts: bytes | None  # the transaction index's entries, likewise


class BranchPlan(NamedTuple):
    source: PartitionLog
    log_start_offset: int
    end_offset: int
    whole: tuple[WholeSegment, ...]
    cut: CutSegment | None
    epochs: bytes
    first_dirty_offset: int
    has_transactions: bool
    producers_from: int  # of the source


def plan_branch(log: PartitionLog, end_offset: int) -> BranchPlan:
    """Return the plan of a branch that contains the log's current records below `end_offset`. Raises NotCached."""
    start_offset = log.log_start_offset
    assert start_offset <= end_offset <= log.log_end_offset
    epochs = LeaderEpochs.decode(log.epochs.encode())
    assert epochs is not None
    epochs.truncate_end(end_offset)
    whole, cut = [], None
    if end_offset > start_offset:
        segments = log.segments.from_offset(start_offset)
        whole = [
            _whole(segment, is_durable=following.base_offset < log.recovery_point)
            for segment, following in pairwise(segments)
            if following.base_offset <= end_offset
        ]
        if len(whole) < len(segments) and segments[len(whole)].base_offset < end_offset:
            cut = _cut(log, segments[len(whole)], end_offset)
    return BranchPlan(
        log,
        start_offset,
        end_offset,
        tuple(whole),
        cut,
        epochs.encode(),
        min(log.first_dirty_offset, end_offset),
        log.has_transactions,
        log.producers_from,
    )


def _whole(segment: Segment, *, is_durable: bool) -> WholeSegment:
    offsets, times = segment.indexes.offsets, segment.indexes.times
    return WholeSegment(
        segment.base_offset,
        segment.created_ms,
        is_durable,
        segment.size_bytes,
        len(offsets) * OFFSET_ENTRY.size if isinstance(offsets, SealedIndex) else None,
        len(times) * TIME_ENTRY.size if isinstance(times, SealedIndex) else None,
        segment.transactions.has_file,
    )


def _cut(log: PartitionLog, segment: Segment, end_offset: int) -> CutSegment:
    assert end_offset < log.log_end_offset, "the log must be rolled first"
    _segment, position, batch_bytes = log.segments.locate(end_offset)
    offsets, times = segment.indexes.offsets, segment.indexes.times
    if not isinstance(offsets, IndexEntries) or not isinstance(times, IndexEntries):
        offsets = times = None
    return CutSegment(
        segment.base_offset,
        segment.created_ms,
        position,
        batch_bytes,
        segment.indexes.interval_bytes,
        offsets.first(bisect_left(offsets.values, position)) if offsets is not None else None,
        times.first(bisect_left(times.values, end_offset - segment.base_offset)) if times is not None else None,
        aborts_below(segment.transactions.read(), end_offset) if offsets is not None else None,
    )
