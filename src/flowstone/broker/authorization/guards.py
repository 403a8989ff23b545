"""Guards: the checks that run before a request's handler if an authorizer is configured.

A guard looks at a request before its handler does. Usually everything in it is allowed (`allows`) and the handler gets
the request unchanged. Otherwise `restrict` takes from the request what its client may not do, and says how the response
is completed: with the refused entries, or without what the client may not see. A request that is refused as a whole is
an ApiError. The handler never hears of what was refused, so that it cannot reveal it.

`restrict` is a generator that yields between time slices: a request may name a hundred thousand topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, Protocol

from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices
from flowstone.broker.requests.context import Handler, RequestContext, Services
from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.broker.requests.permissions import Permission
from flowstone.errors import ProtocolError
from flowstone.promise import Promise
from flowstone.wire.message import Message

Complete = Callable[[Any], Any]


class Restriction(NamedTuple):
    """The remaining work for a request of which a part was refused."""

    # Returns the response with what was refused, or without what is hidden.
    complete: Complete
    # The response if nothing is left for the handler to do.
    answer: Message | None = None
    # Why the connection is closed in place of a response: a produce without acknowledgement has none to hold errors.
    failure: str | None = None


Restricting = Generator[None, None, Restriction | None]


class Guard(Protocol):
    @property
    def permissions(self) -> frozenset[Permission]:
        """The permissions that the guard checks, which the registry declares too."""
        ...

    @property
    def grows(self) -> bool:
        """True if the guard's work grows with the size of the request."""
        ...

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        """Return whether the client may have all that it asks for; the handler then answers alone."""
        ...

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        """Take from the request what the client may not do; return what remains to be done, or None if nothing.

        Raises ApiError if the whole request is refused.
        """
        ...


def guarded(guard: Guard | None, handler: Handler, *, is_large: bool = False) -> Handler:
    """Return a handler that serves what the guard allows. An API without a guard needs no permission."""
    if guard is None:
        return handler

    allows = guard.allows

    def handle(services: Services, context: RequestContext, request: Any) -> Any:
        if allows(services, context, request):
            return handler(services, context, request)
        restricting = guard.restrict(services, context, request)
        return _restricted(restricting, handler, services, context, request)

    async def handle_large(services: Services, context: RequestContext, request: Any) -> Any:
        slices = TimeSlices(services.clock.monotonic)
        restriction = await run_in_slices(guard.restrict(services, context, request), slices)
        answer = _serve(restriction, handler, services, context, request)
        while isinstance(answer, Awaitable):
            answer = await answer
        return answer

    return handle_large if is_large and guard.grows else handle


def _restricted(
    restricting: Restricting, handler: Handler, services: Services, context: RequestContext, request: Any
) -> Any:
    """Serve a small request, whose restriction does not need several time slices."""
    while True:
        try:
            next(restricting)
        except StopIteration as end:
            restriction: Restriction | None = end.value
            return _serve(restriction, handler, services, context, request)


def _serve(
    restriction: Restriction | None, handler: Handler, services: Services, context: RequestContext, request: Any
) -> Any:
    if restriction is None:
        return handler(services, context, request)
    if restriction.answer is not None:
        return restriction.complete(restriction.answer)
    if restriction.failure is not None and restriction.complete is _nothing_left:
        raise ProtocolError(restriction.failure)
    response = handler(services, context._replace(complete=restriction.complete), request)
    return _completed(response, restriction)


def _nothing_left(response: Any) -> Any:
    return response


def close_connection(failure: str) -> Restriction:
    """Return the restriction that closes the connection, for a fully refused request without a response."""
    return Restriction(_nothing_left, failure=failure)


def _completed(response: Any, restriction: Restriction) -> Any:
    if isinstance(response, EncodedResponse):
        return response  # the handler has completed it
    if isinstance(response, Message):
        return restriction.complete(response)
    if response is None:
        if restriction.failure is not None:
            raise ProtocolError(restriction.failure)
        return None
    if isinstance(response, Promise):
        return _Completed(response, restriction)
    return _complete_later(response, restriction)


async def _complete_later(response: Awaitable[Any], restriction: Restriction) -> Any:
    return _completed(await response, restriction)


class _Completed(Promise[Any]):
    """The promise of a completed response."""

    __slots__ = ("_inner", "_restriction")

    def __init__(self, inner: Promise[Any], restriction: Restriction) -> None:
        super().__init__()
        self._inner, self._restriction = inner, restriction
        inner.add_done_callback(self._hear)

    def _hear(self, inner: Promise[Any]) -> None:
        if self.is_done:
            return
        if inner.error is not None:
            self.set_exception(inner.error)
            return
        try:
            response = _completed(inner.result(), self._restriction)
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(response)

    def cancel(self) -> None:
        super().cancel()
        self._inner.cancel()
