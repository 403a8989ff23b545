"""DescribeTransactions and ListTransactions, the requests of operators.

A large shard is listed in slices, so that a request may be answered by a later call. Transactional ids that are created
or removed meanwhile may or may not be listed.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from flowstone.coordinator.transactions.config import (
    LISTINGS_WAITING_MAX,
    PATTERN_WORK_PER_SLICE,
    SLICE_PAUSE_MS,
    TRANSACTIONS_PER_SLICE,
)
from flowstone.coordinator.transactions.messages import (
    DescribedTransaction,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from flowstone.coordinator.transactions.patterns import Pattern, PatternError
from flowstone.coordinator.transactions.records import TransactionState, TransactionStored
from flowstone.coordinator.transactions.state import Turn
from flowstone.errors import ErrorCode

_STATES = {each.label: each for each in TransactionState}
# Kafka's names of states that are never stored: known to ListTransactions, and always without transactions.
_UNSTORED_STATES = ("Dead", "PrepareEpochFence")


def describe(turn: Turn, token: Any, transactional_id: str) -> None:
    stored = turn.shard.transactions.get(transactional_id)
    if stored is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else ErrorCode.INVALID_REQUEST
        turn.reply(token, DescribedTransaction(transactional_id, code))
        return
    marking = turn.shard.markings.get(transactional_id)
    described = DescribedTransaction(
        transactional_id,
        state=stored.state.label,
        timeout_ms=stored.timeout_ms,
        start_ms=stored.start_ms,
        producer_id=stored.producer_id,
        producer_epoch=stored.producer_epoch,
        partitions=tuple(sorted(stored.partitions if marking is None else marking.unmarked)),
    )
    turn.reply(token, described)


class Listing:
    """A ListTransactions request that is being answered in slices."""

    def __init__(self, token: Any, request: ListTransactionsRequest) -> None:
        """Create a listing that has not started. Raises PatternError if the request's pattern cannot be compiled."""
        self._token, self._request = token, request
        self._unlisted: list[str] | None = None  # until its turn comes
        self._states = {_STATES[each] for each in request.states if each in _STATES}
        self._producer_ids = frozenset(request.producer_ids)
        self._pattern = Pattern(request.pattern) if request.pattern else None
        self._listed: list[ListedTransaction] = []

    def run_slice(self, turn: Turn) -> bool:
        """List the next slice; return whether the request has been answered."""
        if self._unlisted is None:
            self._unlisted = list(turn.shard.transactions)
        pattern = self._pattern
        followed_max = pattern.followed_count + PATTERN_WORK_PER_SLICE if pattern is not None else 0
        for _ in range(min(TRANSACTIONS_PER_SLICE, len(self._unlisted))):
            stored = turn.shard.transactions.get(self._unlisted.pop())
            if stored is not None and self._is_wanted(stored, turn.now_ms):
                self._listed.append(ListedTransaction(stored.transactional_id, stored.producer_id, stored.state.label))
            if pattern is not None and pattern.followed_count > followed_max:
                break
        if self._unlisted:
            return False
        known = (*_STATES, *_UNSTORED_STATES)
        unknown = tuple(each for each in self._request.states if each not in known)
        turn.reply(self._token, ListTransactionsResponse(ErrorCode.NONE, unknown, tuple(self._listed)))
        return True

    def _is_wanted(self, stored: TransactionStored, now_ms: int) -> bool:
        request = self._request
        if self._producer_ids and stored.producer_id not in self._producer_ids:
            return False
        if request.states and stored.state not in self._states:
            return False
        # Kafka's rule: what has never started has been running since before all time.
        if request.duration_ms >= 0 and now_ms - stored.start_ms <= request.duration_ms:
            return False
        return self._pattern is None or self._pattern.matches(stored.transactional_id)


class Listings:
    """The requests whose listing takes more than one slice, answered one after the other. Soft state."""

    def __init__(self) -> None:
        self._waiting: deque[Listing] = deque()
        self._due_ms = 0

    def deadline(self) -> int | None:
        return self._due_ms if self._waiting else None

    def add(self, turn: Turn, token: Any, request: ListTransactionsRequest) -> None:
        if len(self._waiting) > LISTINGS_WAITING_MAX:
            turn.reply(token, ListTransactionsResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        try:
            listing = Listing(token, request)
        except PatternError:
            turn.reply(token, ListTransactionsResponse(ErrorCode.INVALID_REGULAR_EXPRESSION))
            return
        if self._waiting or not listing.run_slice(turn):
            self._waiting.append(listing)
            self._due_ms = turn.now_ms + SLICE_PAUSE_MS

    def run(self, turn: Turn) -> None:
        """List the next slice if it is due."""
        if not self._waiting or turn.now_ms < self._due_ms:
            return
        if self._waiting[0].run_slice(turn):
            self._waiting.popleft()
        self._due_ms = turn.now_ms + SLICE_PAUSE_MS
