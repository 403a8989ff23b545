"""Parked requests: fetches that wait for data, produces that wait for their records to be committed.

Each is a promise, which its connection holds. It is answered by an event (the high watermark moved, the partition was
closed) or at its deadline, whichever comes first; cancelling the promise removes it. The number of parked requests is
limited: beyond it a fetch is answered at once with the available records, and a produce is refused before anything is
written. Fetches, which may wait long, get half of the slots, so that they cannot displace produces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from flowstone.broker.loop.deadlines import Deadlines
from flowstone.errors import ErrorCode
from flowstone.ports.clock import Clock
from flowstone.promise import Promise
from flowstone.replication.partition import Partition, Watcher

# The longest wait, whatever the client requests: the client may have disappeared without closing the connection.
FETCH_WAIT_MS_MAX = 60_000


# Partitions in all parked fetches without a session, about 700 bytes each.
PARKED_PARTITIONS_MAX = 100_000


class Interruptible(Protocol):
    """A parked fetch of another kind."""

    def interrupted(self) -> None:
        """Answer with what there is."""
        ...


class Waiting:
    def __init__(self, clock: Clock, parked_max: int) -> None:
        self.deadlines = Deadlines(clock)
        self._parked_max = parked_max
        self.fetches: set[ParkedFetch] = set()
        self.share_fetches: set[Interruptible] = set()
        self.parked_partitions = 0  # in parked fetches without a session
        self.produces: set[ParkedProduce] = set()

    @property
    def is_full(self) -> bool:
        return len(self.fetches) + len(self.share_fetches) + len(self.produces) >= self._parked_max

    def may_park_fetch(self, partition_count: int) -> bool:
        """Return whether one more fetch of so many partitions may be parked."""
        fetches, produces = len(self.fetches) + len(self.share_fetches), len(self.produces)
        return (
            fetches + produces < self._parked_max
            and fetches < (self._parked_max + 1) // 2
            and self.parked_partitions + partition_count <= PARKED_PARTITIONS_MAX
        )

    def release_fetches(self) -> None:
        """Answer every parked fetch with the available records: the broker stops."""
        for fetch in (*self.fetches, *self.share_fetches):
            fetch.interrupted()


class Watched(Protocol):
    """A source of events that wake a parked fetch: a partition, or a session of many."""

    def watch(self, watcher: Watcher) -> None: ...

    def unwatch(self, watcher: Watcher) -> None: ...


class ParkedFetch(Promise[Any]):
    """A parked fetch: its response is made when `missing_bytes` more are there, on a change, or at the deadline."""

    __slots__ = ("_missing_bytes", "_partition_count", "_read_again", "_waiting", "_watched", "_woken")

    def __init__(
        self,
        waiting: Waiting,
        watched: Sequence[Watched],
        missing_bytes: int,
        max_wait_ms: int,
        read_again: Callable[[], Any | Coroutine[Any, Any, Any]],
        partition_count: int = 0,
    ) -> None:
        """`partition_count` is the number of partitions that the request names itself, without a session."""
        super().__init__()
        self.add_done_callback(ParkedFetch._leave)
        self._partition_count = partition_count
        waiting.parked_partitions += partition_count
        self._waiting, self._missing_bytes, self._read_again = waiting, missing_bytes, read_again
        self._watched = watched
        self._woken = False
        waiting.fetches.add(self)
        waiting.deadlines.add(self, min(max_wait_ms, FETCH_WAIT_MS_MAX))
        for each in watched:
            each.watch(self)

    def timed_out(self) -> None:
        self.interrupted()

    def advanced(self, size_bytes: int) -> None:
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.interrupted()

    def interrupted(self) -> None:
        if self._woken or self.is_done:
            return
        self._woken = True
        try:
            response = self._read_again()
        except Exception as error:  # the flush or produce that woke the fetch must not fail with it
            self.set_exception(error)
            return
        if asyncio.iscoroutine(response):  # the records are not in the page cache
            asyncio.ensure_future(response).add_done_callback(self._has_read)
        else:
            self.set_result(response)

    def _has_read(self, reading: asyncio.Future[Any]) -> None:
        if self.is_done:
            return
        error = reading.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(reading.result())

    def _leave(self) -> None:
        self._waiting.fetches.discard(self)
        self._waiting.parked_partitions -= self._partition_count
        for each in self._watched:
            each.unwatch(self)


class Uncommitted(NamedTuple):
    """Records that the leader of an epoch has appended and that are not committed yet."""

    partition: Partition
    next_offset: int
    leader_epoch: int
    on_failed: Callable[[ErrorCode], None]  # called with the reason if the records will not be committed in time


class ParkedProduce(Promise[Any]):
    """A parked produce: its response is made when its records are committed, or at the deadline."""

    __slots__ = ("_answer", "_open")

    def __init__(
        self, waiting: Waiting, uncommitted: list[Uncommitted], timeout_ms: int, answer: Callable[[], Any]
    ) -> None:
        super().__init__()
        self.add_done_callback(waiting.produces.discard)
        self._answer = answer
        self._open = dict(enumerate(uncommitted))
        waiting.produces.add(self)
        waiting.deadlines.add(self, timeout_ms)
        for key, (partition, next_offset, leader_epoch, _) in enumerate(uncommitted):
            partition.when_committed(next_offset, partial(self._committed, key), leader_epoch)

    def timed_out(self) -> None:
        for key in tuple(self._open):
            self._committed(key, ErrorCode.REQUEST_TIMED_OUT)

    def _committed(self, key: int, code: ErrorCode) -> None:
        if self.is_done:
            return
        uncommitted = self._open.pop(key)
        if code is not ErrorCode.NONE:
            uncommitted.on_failed(code)
        if not self._open:
            self.set_result(self._answer())
