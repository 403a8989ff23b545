"""From what the group coordinator says, now or later, to the answer a handler gives.

A join or a sync may wait for minutes. Its answer is a promise and no coroutine, so that the connection goes on reading.
When the connection goes away only the answer is dropped: the coordinator keeps what was asked of it.
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
    """`respond` to the coordinator's response, or `refuse` with the code of its ApiError."""
    if token.done():
        return settle(_outcome(token), respond, refuse)
    promise = _Answer(respond, refuse)
    token.add_done_callback(promise.resolve)
    return promise


def answer_all(tokens: Sequence[Token], respond: Callable[[Sequence[Any]], Response]) -> Response | Promise[Response]:
    """`respond` to the outcomes, in the tokens' order: responses, and ApiError where there is none."""
    waiting = sum(not token.done() for token in tokens)
    if not waiting:
        return respond([_outcome(token) for token in tokens])
    promise: Promise[Response] = Promise()
    count = _Countdown(waiting, lambda: _resolve(promise, lambda: respond([_outcome(token) for token in tokens])))
    for token in tokens:
        if not token.done():
            token.add_done_callback(count)
    return promise


def settle(outcome: Any, respond: Callable[[Any], Response], refuse: Callable[[ErrorCode], Response]) -> Response:
    return refuse(outcome.code) if isinstance(outcome, ApiError) else respond(outcome)


class _Answer(Promise[Response]):
    """The answer to one request of a coordinator: most requests of clients come this way."""

    __slots__ = ("_refuse", "_respond")

    def __init__(self, respond: Callable[[Any], Response], refuse: Callable[[ErrorCode], Response]) -> None:
        super().__init__()
        self._respond, self._refuse = respond, refuse

    def resolve(self, token: Token) -> None:
        if self.done():  # the connection is gone
            return
        try:
            response = settle(_outcome(token), self._respond, self._refuse)
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(response)


class _Countdown:
    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._count, self._then = count, then

    def __call__(self, _: Token) -> None:
        self._count -= 1
        if not self._count:
            self._then()


def _resolve(promise: Promise[Response], respond: Callable[[], Response]) -> None:
    if promise.done():  # the connection is gone
        return
    try:
        promise.set_result(respond())
    except Exception as error:
        promise.set_exception(error)


def _outcome(token: Token) -> Any:
    error = token.exception()
    if error is None:
        return token.result()
    if isinstance(error, ApiError):
        return error
    raise error


def client_host(peer: str) -> str:
    """A peer's address as groups show it: Java's form, without a name and a port."""
    return "/" + peer.rpartition(":")[0]
