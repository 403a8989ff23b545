"""Answers that come later, and the slot of each in the order of its connection's answers.

A handler either answers at once, or returns a promise (a parked request: a fetch that waits for data, a produce that
waits for the disk) or a coroutine (a change of several steps), which may return such a promise in its turn. When the
connection closes, a promise is cancelled, which removes the parked request; a coroutine runs to its end, because its
effects do not concern the connection alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flowstone.broker.dispatch.large_requests import LargeAnswer
from flowstone.broker.requests.chunks import Chunk
from flowstone.errors import ProtocolError
from flowstone.promise import Promise

Outcome = asyncio.Future[Any] | Promise[Any]


@dataclass(slots=True)
class Deferred:
    """An answer that is not known yet, and the function that encodes it."""

    outcome: Outcome
    # Raises ProtocolError if the connection must be closed, and CancelledError if the outcome was cancelled.
    encode: Callable[[Outcome], list[Chunk]]


Answer = list[Chunk] | Deferred | None


class Slot:
    """The place of one answer in the order of its connection's answers."""

    __slots__ = ("_deferred", "_on_answered", "_on_parked", "chunks", "failure", "is_at_work", "size_bytes")

    def __init__(
        self,
        answer: list[Chunk] | Deferred,
        on_answered: Callable[[Slot], None] | None = None,
        on_parked: Callable[[], None] | None = None,
    ) -> None:
        """Hold an answer that is known, or call `on_answered` when its chunks, or a failure, are.

        `on_parked` is called before that if a coroutine ends with a parked request: the connection's later requests may
        then be handled.
        """
        self.size_bytes = 0
        self.failure: str | None = None
        self.is_at_work = False  # whether a coroutine still works on the answer; False while the request is parked
        self.chunks: list[Chunk] | None = None
        self._deferred: Deferred | None = None
        self._on_answered, self._on_parked = on_answered, on_parked
        if isinstance(answer, list):
            self.chunks = answer
            return
        self._deferred, outcome = answer, answer.outcome
        self.is_at_work = isinstance(outcome, asyncio.Task) or (isinstance(outcome, Promise) and outcome.is_work)
        if isinstance(outcome, LargeAnswer):
            self.is_at_work = True
            outcome.on_parked = self._parked
        outcome.add_done_callback(self._done)

    def _parked(self) -> None:
        self.is_at_work = False
        if self._on_parked is not None:
            self._on_parked()

    def cancel(self) -> None:
        self._on_answered = self._on_parked = None
        if self._deferred is not None and not isinstance(self._deferred.outcome, asyncio.Task):
            self._deferred.outcome.cancel()

    def _done(self, outcome: Outcome) -> None:
        self.is_at_work = False
        if isinstance(outcome, asyncio.Task) and (parked := _parked_by(outcome)) is not None:
            self._wait_on(parked)
            return
        if self._on_answered is None:
            if not outcome.cancelled():
                outcome.exception()  # the connection is closed; dispatch has logged the failure where that matters
            return
        assert self._deferred is not None
        try:
            self.chunks = self._deferred.encode(outcome)
        except ProtocolError as error:
            self.failure = str(error)
        except asyncio.CancelledError:
            self.failure = "the broker is stopping"
        self._deferred = None  # the response itself takes several times its bytes
        self._on_answered(self)

    def _wait_on(self, parked: Promise[Any]) -> None:
        """Wait for the promise that the coroutine has left parked; later requests of the connection may go on."""
        if self._on_answered is None:
            parked.cancel()
            return
        assert self._deferred is not None
        self._deferred.outcome = parked
        parked.add_done_callback(self._done)
        if self._deferred is not None:  # the promise was not resolved at once
            self._parked()


def _parked_by(outcome: asyncio.Task[Any]) -> Promise[Any] | None:
    """Return the promise that a finished coroutine has returned in place of a response, if it has."""
    if outcome.cancelled() or outcome.exception() is not None:
        return None
    result = outcome.result()
    return result if isinstance(result, Promise) else None
