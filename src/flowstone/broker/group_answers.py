"""From what the group coordinator says, now or later, to the answer a handler gives.

A join or a sync may wait for minutes. Its answer is a plain future, so that the connection goes on reading. When the
connection goes away only the answer is dropped: the coordinator keeps what was asked of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flowstone.coordinator.runtime import Token
from flowstone.errors import ApiError, ErrorCode

Response = TypeVar("Response")


def answer(
    token: Token, respond: Callable[[Any], Response], refuse: Callable[[ErrorCode], Response]
) -> Response | asyncio.Future[Response]:
    """`respond` to the coordinator's response, or `refuse` with the code of its ApiError."""
    if token.done():
        return settle(_outcome(token), respond, refuse)
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    token.add_done_callback(lambda token: _resolve(future, lambda: settle(_outcome(token), respond, refuse)))
    return future


def answer_all(
    tokens: Sequence[Token], respond: Callable[[Sequence[Any]], Response]
) -> Response | asyncio.Future[Response]:
    """`respond` to the outcomes, in the tokens' order: responses, and ApiError where there is none."""
    waiting = sum(not token.done() for token in tokens)
    if not waiting:
        return respond([_outcome(token) for token in tokens])
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    count = _Countdown(waiting, lambda: _resolve(future, lambda: respond([_outcome(token) for token in tokens])))
    for token in tokens:
        if not token.done():
            token.add_done_callback(count)
    return future


def settle(outcome: Any, respond: Callable[[Any], Response], refuse: Callable[[ErrorCode], Response]) -> Response:
    return refuse(outcome.code) if isinstance(outcome, ApiError) else respond(outcome)


class _Countdown:
    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._count, self._then = count, then

    def __call__(self, _: Token) -> None:
        self._count -= 1
        if not self._count:
            self._then()


def _resolve(future: asyncio.Future[Response], respond: Callable[[], Response]) -> None:
    if future.done():  # the connection is gone
        return
    try:
        future.set_result(respond())
    except Exception as error:
        future.set_exception(error)


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
