"""Worker threads: for reads that wait for the disk, and for native code that takes long.

Workers touch no broker state: a function gets what it needs as arguments and returns a value. Each kind has threads of
its own. A slow disk does not delay compression, nor compression reads, and a batch that takes a tenth of a second to
decompress delays only others like it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from flowstone.broker.loop.login_checks import Asker, LoginChecks
from flowstone.ports.background import request_long_slices
from flowstone.ports.thread_pool import ThreadPool

COMPUTE_THREADS = 2
SLOW_COMPUTE_THREADS = 1
LOGIN_THREADS = 1

T = TypeVar("T")


class Workers:
    def __init__(self, reader_threads: int) -> None:
        self._closed = False
        self.read_count = 0
        # The event loop and flushes have priority: clients wait for those.
        self._readers = ThreadPool(reader_threads, "flowstone-reader", request_long_slices)
        self._computers = ThreadPoolExecutor(COMPUTE_THREADS, "flowstone-compute", initializer=request_long_slices)
        self._slow_computers = ThreadPoolExecutor(
            SLOW_COMPUTE_THREADS, "flowstone-slow", initializer=request_long_slices
        )
        self._login_checkers = ThreadPoolExecutor(LOGIN_THREADS, "flowstone-login", initializer=request_long_slices)
        self._login_checks = LoginChecks(partial(self._run, self._login_checkers))

    def read(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function that reads from the disk."""
        self.read_count += 1
        return self._run(self._readers, function)

    def compute(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function that spends some milliseconds in native code without the interpreter's lock."""
        return self._run(self._computers, function)

    def compute_slowly(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function that may spend longer in native code; such functions run one at a time."""
        return self._run(self._slow_computers, function)

    def check_login(self, function: Callable[[], T], asker: Asker) -> asyncio.Future[T]:
        """Run a function that checks what a client logs in with; such functions run one at a time, in a fair order.

        It fails with ProtocolError if too many wait: the connection is closed, and the client tries again later.
        """
        return self._login_checks.add(function, asker)

    def resize_readers(self, reader_threads: int) -> None:
        """Change the number of threads that read; reads that run or wait are not lost."""
        self._readers.resize(reader_threads)

    def _run(self, executor: Executor, function: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if self._closed:  # the broker is stopping, and its callers with it
            cancelled: asyncio.Future[T] = loop.create_future()
            cancelled.cancel()
            return cancelled
        return loop.run_in_executor(executor, function)

    def close(self) -> None:
        self._closed = True
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._computers.shutdown(wait=True, cancel_futures=True)
        self._slow_computers.shutdown(wait=True, cancel_futures=True)
        self._login_checkers.shutdown(wait=True, cancel_futures=True)
