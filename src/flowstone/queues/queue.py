"""`flowstone.Queue`: the records of a topic as tasks, one by one, shared with all other members of a group."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import Self

from flowstone.client.security import parse_security
from flowstone.queues.consumer import Consumer
from flowstone.queues.options import QueueOptions
from flowstone.queues.task import Task

DEFAULT_IN_FLIGHT = 16
DEFAULT_HOLD_MAX_S = 3600.0
DEFAULT_GRACE_S = 30.0
CONNECT_S = 30.0


class Queue:
    """A topic as a work queue.

    ``for task in Queue("emails", group="senders", bootstrap="localhost:9092"): with task: send(task.value)``

    Every task is delivered to one member of the group at a time. It stays locked while its body runs, however long that
    takes (`hold_max_s`). Threads may share a queue; each process needs its own. Works with every broker that has share
    groups with lock renewal: Flowstone, and Apache Kafka from 4.2 on.
    """

    def __init__(
        self,
        topic: str,
        *,
        group: str,
        bootstrap: str = "localhost:9092",
        in_flight: int = DEFAULT_IN_FLIGHT,
        begin: str | None = "earliest",
        raise_errors: bool = False,
        hold_max_s: float = DEFAULT_HOLD_MAX_S,
        idle_s: float | None = None,
        client_id: str = "flowstone-queue",
        security: Mapping[str, str] | None = None,
    ) -> None:
        """Create the queue without connecting.

        `in_flight` limits the tasks that this queue has locked. `begin` is where a new group begins in the topic; None
        leaves it to the broker's settings. With `raise_errors` an exception of a body leaves the `with` statement; else
        it is logged, and work goes on. With `idle_s` iteration ends when no task arrives for so many seconds.
        `security` has Kafka's client properties for TLS and SASL, such as security.protocol. Raises ValueError,
        BadAddress or ConfigError for an option without sense.
        """
        self._options = QueueOptions(
            topic=topic,
            group=group,
            bootstrap=bootstrap,
            in_flight=in_flight,
            hold_max_s=hold_max_s,
            begin=begin,
            raise_errors=raise_errors,
            client_id=client_id,
            connect_s=CONNECT_S,
            security=None if security is None else parse_security(security),
        )
        self._idle_s = idle_s
        self._consumer = Consumer(self._options)
        self._start_lock = threading.Lock()
        self._is_started = self._is_closed = False
        self._pid = os.getpid()
        # Also at the end of the program, and when nobody has the queue any more.
        self._finalizer = weakref.finalize(self, _close, self._consumer, self._pid)

    @property
    def lost_count(self) -> int:
        """Return how many tasks were lost to this queue before they were settled: their locks had expired, or the
        broker was gone.
        """
        return self._consumer.lost_count

    def get(self, timeout: float | None = None) -> Task | None:
        """Return the next task, or None if none arrives in time, or if the queue was closed.

        Raises ClientError if the cluster refuses the group or the topic.
        """
        while True:
            future = self._next()
            try:
                task = future.result(timeout)
            except FutureTimeout:
                if future.cancel():
                    return None
                task = future.result()
            except BaseException:  # such as KeyboardInterrupt: a task must not go to nobody
                _return(future)
                raise
            if task is None or self._consumer.is_held(task):
                return task

    async def get_async(self, timeout: float | None = None) -> Task | None:
        """Return the next task as `get` does, without blocking the event loop."""
        while True:
            future = self._next()
            try:
                async with asyncio.timeout(timeout):
                    task = await asyncio.wrap_future(future)
            except TimeoutError:
                _return(future)
                return None
            except asyncio.CancelledError:
                _return(future)
                raise
            if task is None or self._consumer.is_held(task):
                return task

    def __iter__(self) -> Iterator[Task]:
        while (task := self.get(self._idle_s)) is not None or self._is_joining:
            if task is not None:
                yield task

    async def __aiter__(self) -> AsyncIterator[Task]:
        while (task := await self.get_async(self._idle_s)) is not None or self._is_joining:
            if task is not None:
                yield task

    @property
    def _is_joining(self) -> bool:
        """Return whether the group has not assigned any partition yet, which may take a heartbeat interval."""
        consumer = self._consumer
        return not consumer.is_assigned and not consumer.handoff.is_closed

    def run(self, work: Callable[[Task], object], *, threads: int = 1) -> None:
        """Call `work` with each task in so many threads, until the queue is closed or idle for `idle_s`.

        A task is accepted when `work` returns, and released if it raises.
        """
        failures: list[BaseException] = []

        def serve() -> None:
            try:
                for task in self:
                    with task:
                        work(task)
            except BaseException as error:
                failures.append(error)
                self.stop()

        workers = [threading.Thread(target=serve, name=f"{self._options.topic}-worker-{n}") for n in range(threads)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except BaseException:
            self.stop()
            for worker in workers:
                worker.join()
            raise
        if failures:
            raise failures[0]

    def stop(self) -> None:
        """End iteration in all threads, without waiting; tasks in work are finished as usual. Then call `close`."""
        for task in self._consumer.handoff.close():
            task.release()

    def close(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Release tasks that have not started, wait `grace_s` at most for running bodies, and leave the group."""
        self._is_closed = True
        self.stop()
        if self._is_started and os.getpid() == self._pid:
            self._consumer.close(grace_s)
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def _next(self) -> Future[Task | None]:
        if os.getpid() != self._pid:
            raise RuntimeError("this queue was made before the process was forked: make a queue in each process")
        with self._start_lock:
            if not self._is_started and not self._is_closed:
                self._is_started = True
                self._consumer.start()
        return self._consumer.handoff.take()


def _return(future: Future[Task | None]) -> None:
    """Give up waiting; a task that arrived meanwhile is released."""
    if future.cancel() or future.exception() is not None:
        return
    task = future.result()
    if task is not None:
        task.release()


def _close(consumer: Consumer, pid: int) -> None:
    if os.getpid() == pid:
        consumer.close(0.0)
