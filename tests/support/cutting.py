"""The broker's own truncation of logs, for tests that have a log but no log manager.

`lifecycle.truncator.Truncator` runs as it is. What the manager gives it is replaced by forms that work at once:
a worker thread that is the calling thread, and a flusher that flushes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from flowstone.log.lifecycle.truncator import Truncator
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import wait_for
from flowstone.ports.clock import Clock

T = TypeVar("T")


class _Housekeeping:
    """The part of `log.housekeeping.Housekeeping` that a truncation uses, without a thread."""

    def __init__(self, checkpoint: Callable[[], None]) -> None:
        self._checkpoint = checkpoint

    async def checkpoint(self) -> None:
        self._checkpoint()

    async def in_thread(self, action: Callable[[], None]) -> None:
        action()

    async def when_cached(self, read: Callable[[], T]) -> T:
        return wait_for(read)

    def submit(self, action: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(action())
        except Exception as error:
            done.set_exception(error)
        return done


class _Flusher:
    def request(self, log: PartitionLog) -> None:
        """A test flushes when it wants to."""

    def forget(self, log: PartitionLog) -> None:
        """Nothing was requested."""


def truncating_at_once(clock: Clock, checkpoint: Callable[[], Any]) -> Truncator:
    """Return the broker's truncation; `checkpoint` is called where the broker writes its checkpoints."""
    return Truncator(clock, _Housekeeping(checkpoint), _Flusher())  # type: ignore[arg-type]
