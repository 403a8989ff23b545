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
    """The part of asyncio.Future that a request needs, with the same names; it can also be awaited."""

    __slots__ = ("_callbacks", "_error", "_is_cancelled", "_is_done", "_result")

    _result: Result

    def __init__(self) -> None:
        self._is_done = self._is_cancelled = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def result(self) -> Result:
        assert self._is_done
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self) -> BaseException | None:
        assert self._is_done
        return self._error

    def set_result(self, result: Result) -> None:
        self._result = result
        self._settle()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._settle()

    def cancel(self) -> None:
        """Cancel the promise, because its result is not needed any more; no effect if it is done."""
        if not self._is_done:
            self._error = asyncio.CancelledError()
            self._is_cancelled = True
            self._settle()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` once with this promise when it is done, now if it already is, in order of addition."""
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def _settle(self) -> None:
        assert not self._is_done
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def __await__(self) -> Generator[Any, None, Result]:
        if not self._is_done:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(_: object) -> None:
                if not settled.done():  # the task may have been cancelled
                    settled.set_result(None)

            self.add_done_callback(wake)
            yield from settled.__await__()
        return self.result()
