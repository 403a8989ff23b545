"""Measurement of how long a request occupies the event loop: the sum of all its steps, and the longest one.

A handler that is a coroutine runs in steps, and other work runs in between. Only a long step delays other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class Stretches:
    """The loop time that one request has taken so far: in total, and in its longest step."""

    __slots__ = ("longest_s", "monotonic", "total_s")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.longest_s = self.total_s = 0.0

    def add(self, took_s: float) -> None:
        self.total_s += took_s
        self.longest_s = max(self.longest_s, took_s)


# The loop time of the request that the running task belongs to.
_current: ContextVar[Stretches | None] = ContextVar("stretches", default=None)


class _Measured(Coroutine[Any, Any, T]):
    """A coroutine whose steps are added to `stretches`."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], stretches: Stretches) -> None:
        self._coroutine, self._stretches = coroutine, stretches

    def send(self, value: Any) -> Any:
        started = self._stretches.monotonic()
        try:
            return self._coroutine.send(value)
        finally:
            self._stretches.add(self._stretches.monotonic() - started)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        raise NotImplementedError("a task runs it")


def start_measured(coroutine: Coroutine[Any, Any, T], stretches: Stretches) -> asyncio.Task[T]:
    """Return a task for the coroutine; add its steps, and those of tasks it starts with `start`, to `stretches`."""
    context = copy_context()
    context.run(_current.set, stretches)
    return asyncio.get_running_loop().create_task(_Measured(coroutine, stretches), context=context)


def start(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Return a task for the coroutine; its steps count for the request of the running task, if there is one."""
    stretches = _current.get()
    if stretches is None:
        return asyncio.ensure_future(coroutine)
    return asyncio.get_running_loop().create_task(_Measured(coroutine, stretches))
