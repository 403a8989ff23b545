"""A result that becomes available later, whose callbacks run immediately without the event loop.

An asyncio future runs its callbacks in a later iteration of its event loop, each through a handle. A request would pay
for that two or three times without benefit, because everything here belongs to one event loop. In return, callbacks run
inside `set_result`: its caller must expect their effects, and callbacks must not raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Promise(Generic[Result]):
    """The part of asyncio.Future that a request needs, with the same names; it can also be awaited.

    `is_done` and `error` are what `done` and `exception` return, for code that never has a future in their place. Only
    the promise itself sets them.
    """

    __slots__ = ("_callbacks", "_is_cancelled", "_result", "error", "is_done")

    # Whether the request has not been carried out yet, so that the connection's next request must wait for the result.
    is_work = False
    _result: Result

    def __init__(self) -> None:
        self.is_done = self._is_cancelled = False
        self.error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        return self.is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def result(self) -> Result:
        assert self.is_done
        if self.error is not None:
            raise self.error
        return self._result

    def exception(self) -> BaseException | None:
        assert self.is_done
        return self.error

    def set_result(self, result: Result) -> None:
        assert not self.is_done
        self.is_done, self._result = True, result
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def set_exception(self, error: BaseException) -> None:
        assert not self.is_done
        self.is_done, self.error = True, error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def cancel(self) -> None:
        """Cancel the promise, because its result is not needed any more; no effect if it is done."""
        if not self.is_done:
            self._is_cancelled = True
            Promise.set_exception(self, asyncio.CancelledError())  # a subclass may make a result of other errors

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` once with this promise when it is done, now if it already is, in order of addition."""
        if self.is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[Any, None, Result]:
        if not self.is_done:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(_: object) -> None:
                if not settled.done():  # the task may have been cancelled
                    settled.set_result(None)

            self.add_done_callback(wake)
            yield from settled.__await__()
        return self.result()
