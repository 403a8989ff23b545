"""An event loop in simulated time, shared by every process of a simulation.

A `Process` is what a machine's process would be: whatever is scheduled while its code runs is its own, through a
context variable, and so is everything that follows from it. A process that is paused is not given its turns, and its
timers fire late; one that was killed never runs again, not even a `finally`.

Time moves only when nobody has anything to do. Turns come in the order in which they were asked for: the same seed
gives the same order, and `digest` says so.
"""

from __future__ import annotations

import asyncio
import heapq
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from struct import Struct
from typing import Any, TypeVar

T = TypeVar("T")
TURNS_AT_ONCE_MAX = 50_000
_TURN = Struct("=dI")


class Livelock(Exception):
    """So many turns were taken without a moment passing that no end is to be expected."""


class Process:
    def __init__(self, loop: SimulatedLoop, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.is_alive, self.is_paused = True, False
        self._loop = loop
        self._held: list[Any] = []
        # What a killed process still had to do: were it let go of, Python would run its `finally` blocks.
        self._remains: list[object] = []
        self.context = copy_context()
        self.context.run(_OWNER.set, self)

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """From outside: the process is to do this as soon as it can."""
        self._loop.call_soon(callback, *args, context=self.context)

    def later(self, delay_s: float, callback: Callable[..., object], *args: object) -> _Handle:
        return self._loop.call_at(self._loop.time() + delay_s, callback, *args, context=self.context)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(coroutine, context=self.context.copy())

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        self._loop.take_up(held)

    def kill(self) -> None:
        self.is_alive = False
        self._remains += [self._held, *(task for task in asyncio.all_tasks(self._loop))]
        self._held = []

    def take(self, handle: _Handle) -> None:
        """A turn that it cannot take now, or ever."""
        (self._held if self.is_alive else self._remains).append(handle)


_OWNER: ContextVar[Process | None] = ContextVar("owner", default=None)
# Belongs to nobody: the network, the faults and the oracles.
NEUTRAL = Context()


def running_process() -> Process | None:
    return _OWNER.get()


class _Handle:
    __slots__ = ("args", "callback", "context", "is_cancelled", "owner", "when_s")

    def __init__(
        self, callback: Callable[..., object], args: tuple[object, ...], context: Context, when_s: float
    ) -> None:
        self.callback, self.args, self.context, self.when_s = callback, args, context, when_s
        self.owner: Process | None = context.get(_OWNER)
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class SimulatedLoop(asyncio.AbstractEventLoop):
    def __init__(self) -> None:
        self._now_s = 0.0
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._timer_count = 0
        self._is_closed = False
        self.turn_count = 0
        self.digest = 0
        # What went wrong where nobody was there to hear of it.
        self.unhandled: list[str] = []

    # Scheduling

    def time(self) -> float:
        return self._now_s

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = _Handle(callback, args, context if context is not None else copy_context(), self._now_s)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = _Handle(callback, args, context if context is not None else copy_context(), when)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """At a turn of its own; what it takes long for is not simulated."""
        future = self.create_future()
        self.call_soon(_run_into, future, func, args)
        return future

    def take_up(self, handles: list[_Handle]) -> None:
        """Turns that were held, before all that were asked for since."""
        self._ready.extendleft(reversed(handles))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    # Running

    def run_until(self, when_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Runs until that time has come, or until it is over, which is looked at when nothing is left to do."""
        asyncio._set_running_loop(self)
        try:
            while not is_over():
                self._run_ready()
                if not self._timers or self._timers[0][0] > when_s:
                    self._now_s = max(self._now_s, when_s)
                    return
                self._now_s = self._timers[0][0]
                while self._timers and self._timers[0][0] <= self._now_s:
                    self._ready.append(heapq.heappop(self._timers)[2])
        finally:
            asyncio._set_running_loop(None)

    def run(self, process: Process, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """What the coroutine returns as a part of the process; TimeoutError if that takes longer."""
        task = process.start(coroutine)
        self.run_until(self._now_s + timeout_s, task.done)
        if not task.done():
            raise TimeoutError(f"{process.name} took longer than {timeout_s} simulated seconds")
        return task.result()

    def _run_ready(self) -> None:
        ready, turns = self._ready, 0
        while ready:
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            owner = handle.owner
            if owner is not None and (owner.is_paused or not owner.is_alive):
                owner.take(handle)
                continue
            turns += 1
            if turns > TURNS_AT_ONCE_MAX:
                raise Livelock(f"at {self._now_s} s: {handle.callback}")
            self.digest = zlib.crc32(_TURN.pack(self._now_s, owner.number if owner is not None else 0), self.digest)
            try:
                handle.context.run(handle.callback, *handle.args)
            except Exception as error:
                self.call_exception_handler({"message": f"in {handle.callback}", "exception": error})
        self.turn_count += turns

    def note(self, data: bytes) -> None:
        """Makes something a part of what `digest` tells."""
        self.digest = zlib.crc32(data, self.digest)

    # What asyncio asks of a loop

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        message = context["message"]
        if "was destroyed" not in message:  # killed processes leave their tasks behind
            self.unhandled.append(f"{self._now_s:.3f} s: {message}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Lets go of everything."""
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()


def _run_into(future: asyncio.Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = function(*args)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
