"""Periodic scans of a shard: abort transactions that have timed out, and remove unused transactional ids.

Both scans run at their interval and in slices. A scan that cannot find anything is not scheduled: an idle shard needs
no wake-up for timeouts, and an empty shard none at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from flowstone.coordinator.transactions.config import SLICE_PAUSE_MS, TRANSACTIONS_PER_SLICE
from flowstone.coordinator.transactions.endings import fence
from flowstone.coordinator.transactions.records import (
    NO_PRODUCER_EPOCH,
    NO_TIMEOUT_MS,
    TransactionRemoved,
    TransactionState,
    TransactionStored,
)
from flowstone.coordinator.transactions.state import Turn
from flowstone.errors import ErrorCode


class Scan:
    """The progress of one kind of scan, and when its next slice is due. Soft state: after a reload it starts over."""

    def __init__(self, check: Callable[[Turn, TransactionStored], None], interval_ms: int) -> None:
        self._check, self._interval_ms = check, interval_ms
        self._unchecked: list[str] = []
        self._due_ms = 0

    def start(self, now_ms: int) -> None:
        self._due_ms = now_ms + self._interval_ms

    def deadline(self, candidates: Collection[str]) -> int | None:
        return self._due_ms if self._unchecked or candidates else None

    def run(self, turn: Turn, candidates: Collection[str]) -> None:
        """Check the next slice if it is due. A new pass goes over `candidates`, the transactional ids to check."""
        if turn.now_ms < self._due_ms or not (self._unchecked or candidates):
            return
        if not self._unchecked:
            self._unchecked = list(candidates)
        for transactional_id in self._unchecked[-TRANSACTIONS_PER_SLICE:]:
            stored = turn.shard.transactions.get(transactional_id)
            if stored is not None:
                self._check(turn, stored)
        del self._unchecked[-TRANSACTIONS_PER_SLICE:]
        self._due_ms = turn.now_ms + (SLICE_PAUSE_MS if self._unchecked else self._interval_ms)


def abort_if_timed_out(turn: Turn, stored: TransactionStored) -> None:
    """Abort the transaction if its timeout has passed. Without a new producer id the next scan tries again.

    A start that lies in the future by more than the timeout comes from a coordinator whose clock was wrong. Such a
    transaction is aborted too; otherwise it would stay open until that time.
    """
    if stored.state is not TransactionState.ONGOING or stored.timeout_ms == NO_TIMEOUT_MS:
        return
    age_ms = turn.now_ms - stored.start_ms
    is_due = age_ms >= stored.timeout_ms or age_ms < -stored.timeout_ms
    if is_due and fence(turn, stored, last_epoch=NO_PRODUCER_EPOCH) is ErrorCode.NONE:
        turn.shard.counts.timed_out += 1


def remove_if_expired(turn: Turn, stored: TransactionStored) -> None:
    is_idle = stored.state is TransactionState.EMPTY or stored.state.is_complete
    if is_idle and turn.now_ms - stored.last_update_ms >= turn.config.transactional_id_expiration_ms:
        turn.append(TransactionRemoved(stored.transactional_id))
