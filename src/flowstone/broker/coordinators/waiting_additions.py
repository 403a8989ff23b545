"""Requests to add partitions that wait while the producer's previous transaction is being ended.

The shard answers CONCURRENT_TRANSACTIONS until all end markers are written, which takes a flush or two. A client with
this answer pauses for 20 ms or more before it asks again. Here the request waits instead, for a limited time, and is
repeated as soon as the transaction is complete: both records are then appended in one iteration of the loop, and share
a flush.

A waiting request changes nothing: the result is as if it had arrived later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flowstone.broker.loop.deadlines import Deadlines
from flowstone.coordinator.runtime import Token
from flowstone.coordinator.transactions.messages import AddPartitionsRequest, AddPartitionsResponse
from flowstone.errors import ErrorCode
from flowstone.ports.clock import Clock
from flowstone.promise import Promise

# How long a request may wait: the connection's next requests are answered after it.
WAIT_MS_MAX = 100
# Requests that wait at a time; more are answered at once.
WAITING_MAX = 10_000


class _Waiting(Promise[AddPartitionsResponse]):
    """A request and the promise of its answer."""

    __slots__ = ("asked", "has_ended", "is_refused", "waits_since_refused")

    def __init__(self, asked: AddPartitionsRequest) -> None:
        super().__init__()
        self.asked = asked
        self.has_ended = False  # the transaction before, since the shard was asked
        self.is_refused = False  # by the shard's last answer
        self.waits_since_refused = False  # whether the time of waiting has begun

    def timed_out(self) -> None:
        self.set_result(AddPartitionsResponse(ErrorCode.CONCURRENT_TRANSACTIONS))


class WaitingAdditions:
    def __init__(self, clock: Clock, ask: Callable[[AddPartitionsRequest], Token]) -> None:
        """Create it without waiting requests; `ask` passes a request to its shard."""
        self._ask = ask
        self._deadlines = Deadlines(clock)
        self._waiting: dict[str, list[_Waiting]] = {}  # by transactional id
        self._count = 0

    def add(self, asked: AddPartitionsRequest) -> Token:
        """Return the promise of the shard's answer, which raises ApiError if there is none."""
        token = self._ask(asked)
        if (token.done() and not _is_concurrent(token)) or self._count >= WAITING_MAX:
            return token
        waiting = _Waiting(asked)
        self._waiting.setdefault(asked.transactional_id, []).append(waiting)
        self._count += 1
        waiting.add_done_callback(self._forget)
        token.add_done_callback(partial(self._answered, waiting))
        return waiting

    def ended(self, transactional_id: str) -> None:
        """Repeat the waiting requests of a transactional id, all of whose end markers are written."""
        for waiting in tuple(self._waiting.get(transactional_id, ())):
            if waiting.is_refused:
                self._ask_again(waiting)
            else:
                waiting.has_ended = True

    def _answered(self, waiting: _Waiting, token: Token) -> None:
        if waiting.done():  # it has waited for too long, or nobody waits for it any more
            return
        if not _is_concurrent(token):
            error = token.exception()
            if error is None:
                waiting.set_result(token.result())
            else:
                waiting.set_exception(error)
        elif waiting.has_ended:
            self._ask_again(waiting)
        else:
            waiting.is_refused = True
            if not waiting.waits_since_refused:
                waiting.waits_since_refused = True
                self._deadlines.add(waiting, WAIT_MS_MAX)

    def _ask_again(self, waiting: _Waiting) -> None:
        waiting.has_ended = waiting.is_refused = False
        self._ask(waiting.asked).add_done_callback(partial(self._answered, waiting))

    def _forget(self, waiting: _Waiting) -> None:
        transactional_id = waiting.asked.transactional_id
        others = self._waiting[transactional_id]
        others.remove(waiting)
        self._count -= 1
        if not others:
            del self._waiting[transactional_id]


def _is_concurrent(token: Token) -> bool:
    return token.exception() is None and token.result().error_code is ErrorCode.CONCURRENT_TRANSACTIONS
