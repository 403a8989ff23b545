"""A pool of threads whose number can change while functions run in it and wait for it.

More threads begin with what waits at once. A surplus thread ends after the function that it runs; what waits is left to
the other threads. Threads start when there is something to run, up to the number allowed.

`concurrent.futures.ThreadPoolExecutor` has a fixed size. Unlike its threads, these do not delay the end of a process
that forgets to shut the pool down.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count
from threading import Condition, Thread, current_thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Call = tuple[Future[Any], Callable[[], Any]]


class ResizableExecutor(Executor):
    @abstractmethod
    def resize(self, thread_count: int) -> None:
        """Change the number of threads; what runs and what waits is not lost."""


class ThreadPool(ResizableExecutor):
    def __init__(self, thread_count: int, name: str, initializer: Callable[[], None] = lambda: None) -> None:
        """Create a pool. Each thread calls `initializer` first."""
        assert thread_count > 0
        self._thread_count = thread_count
        self._name, self._initializer = name, initializer
        self._numbers = count()
        self._changed = Condition()  # guards everything below
        self._threads: set[Thread] = set()
        self._calls: deque[_Call] = deque()
        self._unfinished = 0  # calls that wait or run
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._is_shut_down:
                raise RuntimeError(f"the threads {self._name} were shut down")
            self._unfinished += 1
            try:
                self._start_missing()
            except RuntimeError:
                self._unfinished -= 1
                raise
            self._calls.append((future, partial(fn, *args, **kwargs)))
            self._changed.notify()
        return future

    def resize(self, thread_count: int) -> None:
        assert thread_count > 0
        with self._changed:
            self._thread_count = thread_count
            if not self._is_shut_down:
                self._start_missing()
            # Each waiting thread looks again, so a call's notification is never lost with a thread that ends.
            self._changed.notify_all()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        cancelled: list[_Call] = []
        with self._changed:
            self._is_shut_down = True
            if cancel_futures:
                cancelled.extend(self._calls)
                self._calls.clear()
            threads = list(self._threads)
            self._changed.notify_all()
        for future, _function in cancelled:
            future.cancel()
        if wait:
            for thread in threads:
                thread.join()

    def _start_missing(self) -> None:
        """Start threads for the calls that have none. Raises RuntimeError if there is no thread and none starts."""
        while len(self._threads) < min(self._thread_count, self._unfinished):
            thread = Thread(target=self._work, name=f"{self._name}_{next(self._numbers)}", daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the system's limit of threads is reached
                self._threads.discard(thread)
                if not self._threads:
                    raise
                return

    def _work(self) -> None:
        self._initializer()
        while self._run_next():
            pass  # nothing here refers to a call that has ended

    def _run_next(self) -> bool:
        """Run the next call; return False if the thread should end instead."""
        call = self._take()
        if call is None:
            return False
        _run(*call)
        with self._changed:
            self._unfinished -= 1
        return True

    def _take(self) -> _Call | None:
        with self._changed:
            while len(self._threads) <= self._thread_count:
                if self._calls:
                    return self._calls.popleft()
                if self._is_shut_down:
                    break
                self._changed.wait()
            self._threads.discard(current_thread())
            return None


def _run(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
        del future  # breaks a reference cycle through the traceback
    else:
        future.set_result(result)
