"""A result that comes later, and who waits for it hears at once: no event loop in between.

An asyncio future calls back in a later turn of its loop, through a handle each. On the way of a request that is twice
or three times, for nothing: everything here belongs to one loop and is told from it. The price: callbacks run inside
`set_result`, so whoever sets a result must be ready for what they do, and they must not raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Promise(Generic[Result]):
    """The part of asyncio.Future that a request needs, under the same names; it can be awaited too."""

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
        """Nobody waits any more; nothing happens to what is done."""
        if not self._is_done:
            self._error = asyncio.CancelledError()
            self._is_cancelled = True
            self._settle()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Called once, with this promise, now if it is done; callbacks run in the order they were added."""
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
                if not settled.done():  # the task may have given up
                    settled.set_result(None)

            self.add_done_callback(wake)
            yield from settled.__await__()
        return self.result()
