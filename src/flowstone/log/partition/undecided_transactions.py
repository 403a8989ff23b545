"""The transactions of a log that hold back the last stable offset.

Owns the first offset of every open transaction, and of every decided one whose end marker may lie at or above the high
watermark. Pure and in memory: `ProducerStates`, which finds them in the log, stores the open ones in its snapshots.
Decided ones are not stored: a marker that a restart has forgotten repeats a decision that the coordinator has stored.

Invariant: transactions are opened, and decided, in the order of their offsets.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from flowstone.log.segments.transaction_index import AbortEntry, abort_entry

# Decided transactions that are remembered until their markers are replicated. Two neighbours beyond it become one,
# which holds the last stable offset back a little longer.
DECIDED_MAX = 4096


class OpenTransaction(NamedTuple):
    producer_id: int
    epoch: int
    first_offset: int


class DecidedTransaction(NamedTuple):
    """The outcome of a transaction, from its end marker, with the fields of Kafka's transaction index."""

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int  # valid once the marker is replicated
    is_commit: bool

    def abort_entry(self) -> AbortEntry:
        """Return the entry of the transaction index for this transaction, which is aborted."""
        assert not self.is_commit
        return abort_entry(self.producer_id, self.first_offset, self.marker_offset, self.last_stable_offset)


class _Decided(NamedTuple):
    first_offset: int
    marker_offset: int


class UndecidedTransactions:
    __slots__ = ("_decided", "_open")

    def __init__(self) -> None:
        # By producer id. Not a dict: finding the first entry of a dict takes longer the more entries were deleted
        # before it.
        self._open: OrderedDict[int, int] = OrderedDict()
        # Both offsets rise: a transaction that begins after one that was decided later is left out.
        self._decided: deque[_Decided] = deque()

    def __len__(self) -> int:
        """Return the number of open transactions."""
        return len(self._open)

    def items(self) -> list[tuple[int, int]]:
        """Return the producer ids and first offsets of the open transactions, by first offset."""
        return [*self._open.items()]

    def oldest(self) -> tuple[int, int] | None:
        """Return the producer id and first offset of the open transaction that began first, or None if none is open."""
        return next(iter(self._open.items()), None)

    def first_offset_of(self, producer_id: int) -> int | None:
        """Return the first offset of a producer's open transaction, or None if it has none."""
        return self._open.get(producer_id)

    def begin(self, producer_id: int, first_offset: int) -> None:
        assert producer_id not in self._open
        self._open[producer_id] = first_offset

    def decide(self, producer_id: int, marker_offset: int, *, is_commit: bool) -> DecidedTransaction:
        """Close a producer's open transaction by its marker at `marker_offset`."""
        first_offset = self._open.pop(producer_id)
        decided = self._decided
        while decided and decided[-1].first_offset >= first_offset:
            decided.pop()
        if len(decided) >= DECIDED_MAX:
            first_offset_held = decided.pop().first_offset
        else:
            first_offset_held = first_offset
        decided.append(_Decided(first_offset_held, marker_offset))
        stable_offset = next(iter(self._open.values()), marker_offset + 1)
        return DecidedTransaction(producer_id, first_offset, marker_offset, stable_offset, is_commit)

    def first_unstable_offset(self, high_watermark: int) -> int:
        """Return the first offset of the earliest transaction that is undecided below the high watermark, or that
        watermark.

        Decided transactions below it are forgotten: a high watermark that moves back does not restore them.
        """
        decided = self._decided
        while decided and decided[0].marker_offset < high_watermark:
            decided.popleft()
        first_open = next(iter(self._open.values()), high_watermark)
        first_decided = decided[0].first_offset if decided else high_watermark
        return min(first_open, first_decided, high_watermark)
