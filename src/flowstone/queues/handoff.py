"""The place where fetched tasks wait for the threads and coroutines that work on them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future

from flowstone.queues.task import Task


class Handoff:
    """A queue of tasks with any number of takers; closed once, with an error or without."""

    def __init__(self) -> None:
        # A signal handler may close it while its thread is in one of the methods.
        self._lock = threading.RLock()
        self._tasks: deque[Task] = deque()
        self._takers: deque[Future[Task | None]] = deque()
        self._is_closed = False
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def put(self, tasks: Iterable[Task]) -> None:
        """Give tasks to those that wait, or keep them."""
        with self._lock:
            for task in tasks:
                while self._takers:
                    # A taker that has given up is done, or refuses to run.
                    taker = self._takers.popleft()
                    if taker.set_running_or_notify_cancel():
                        taker.set_result(task)
                        break
                else:
                    self._tasks.append(task)

    def take(self) -> Future[Task | None]:
        """Return the future of the next task; None once it is closed. Cancel it to give up."""
        future: Future[Task | None] = Future()
        with self._lock:
            if self._tasks:
                future.set_result(self._tasks.popleft())
            elif self._error is not None:
                future.set_exception(self._error)
            elif self._is_closed:
                future.set_result(None)
            else:
                self._takers.append(future)
                self._refuse_late(future)
        return future

    def _refuse_late(self, taker: Future[Task | None]) -> None:
        """Answer a taker that a signal handler's `close` has not seen, because it came in between."""
        if self._is_closed and taker in self._takers:
            self._takers.remove(taker)
            taker.set_result(None)

    def close(self, error: BaseException | None = None) -> list[Task]:
        """Wake all waiting threads; return the tasks that no thread has taken."""
        with self._lock:
            if self._is_closed:
                return []
            self._is_closed, self._error = True, error
            left, takers = list(self._tasks), list(self._takers)
            self._tasks.clear()
            self._takers.clear()
        for taker in takers:
            if not taker.set_running_or_notify_cancel():
                continue
            if error is not None:
                taker.set_exception(error)
            else:
                taker.set_result(None)
        return left
