"""Converts the group coordinator's results, which may come later, to responses of handlers.

A join or a sync may wait for minutes. Its response is a promise and not a coroutine, so that the connection reads on.
If the connection closes only the response is dropped: the coordinator continues with the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flowstone.coordinator.runtime import Token
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise

Response = TypeVar("Response")


def answer(
    token: Token, respond: Callable[[Any], Response], refuse: Callable[[ErrorCode], Response]
) -> Response | Promise[Response]:
    """Return the response, or the promise of it, for a token that must outlive the connection: see `Answer`."""
    if token.is_done:
        error = token.error
        if error is None:
            return respond(token.result())
        if isinstance(error, ApiError):
            return refuse(error.code)
        raise error
    promise = Answer(respond, refuse)
    token.add_done_callback(promise.hear)
    return promise


def answer_all(tokens: Sequence[Token], respond: Callable[[Sequence[Any]], Response]) -> Response | Promise[Response]:
    """Return the response made of the results of all tokens, in their order: responses, or the ApiError of a failed
    one.
    """
    waiting = sum(not token.is_done for token in tokens)
    if not waiting:
        return respond([_outcome(token) for token in tokens])
    promise: Promise[Response] = Promise()
    count = _Countdown(waiting, lambda: _resolve(promise, lambda: respond([_outcome(token) for token in tokens])))
    for token in tokens:
        if not token.is_done:
            token.add_done_callback(count)
    return promise


async def outcome_of(token: Token) -> Any:
    """Wait for a token and return its response. Raises ApiError if it failed."""
    try:
        return await token
    except ApiError as error:
        return error


def settle(outcome: Any, respond: Callable[[Any], Response], refuse: Callable[[ErrorCode], Response]) -> Response:
    return refuse(outcome.code) if isinstance(outcome, ApiError) else respond(outcome)


class Answer(Promise[Response]):
    """A token whose result is converted to the handler's response as soon as the coordinator resolves it.

    It counts as answered when the connection closes. A request that may wait for long must use `answer` instead.
    """

    __slots__ = ("_refuse", "_respond")

    def __init__(self, respond: Callable[[Any], Response], refuse: Callable[[ErrorCode], Response]) -> None:
        """Create an unanswered token: `respond` converts the result, `refuse` the code of an ApiError."""
        super().__init__()
        self._respond, self._refuse = respond, refuse

    def hear(self, token: Token) -> None:
        """Take the result of a token that the coordinator keeps for longer than the connection lasts."""
        if self.is_done:  # the connection is gone
            return
        error = token.error
        if error is None:
            self.set_result(token.result())
        else:
            self.set_exception(error)

    def set_result(self, result: Any) -> None:
        self._settle_with(self._respond, result)

    def set_exception(self, error: BaseException) -> None:
        if isinstance(error, ApiError):
            self._settle_with(self._refuse, error.code)
        else:
            super().set_exception(error)

    def _settle_with(self, make: Callable[[Any], Response], outcome: Any) -> None:
        try:
            response = make(outcome)
        except Exception as error:
            super().set_exception(error)
        else:
            super().set_result(response)


class _Countdown:
    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._count, self._then = count, then

    def __call__(self, _: Token) -> None:
        self._count -= 1
        if not self._count:
            self._then()


def _resolve(promise: Promise[Response], respond: Callable[[], Response]) -> None:
    if promise.is_done:  # the connection is gone
        return
    try:
        promise.set_result(respond())
    except Exception as error:
        promise.set_exception(error)


def _outcome(token: Token) -> Any:
    error = token.error
    if error is None:
        return token.result()
    if isinstance(error, ApiError):
        return error
    raise error
