"""Deadlines of many keys, optimized for keys whose deadline is moved far more often than it is reached.

Every heartbeat moves a deadline. Moving one later is a single dictionary write: the heap keeps the old, earlier entry,
which is corrected when it is popped. Invariant: a key with a deadline has a live heap entry at or before it.

Cancelled timers leave their entries in the heap. The heap is rebuilt when most of its entries are cancelled: otherwise
entries of members that have left would stay until their deadlines, five minutes each.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple

STALE_ENTRIES_KEPT_MAX = 64
"""Heap entries of cancelled timers, beyond as many as there are live ones, after which the heap is rebuilt."""


class TimerKind(IntEnum):
    SESSION = 0  # of a member, or of a member id that was handed out and not yet used
    JOIN = 1  # of a group: the join phase ends
    SYNC = 2  # of a group: all members must have sent SyncGroup
    EXPIRY = 3  # of the shard: expired offsets are removed


class Timer(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


EXPIRY_TIMER = Timer(TimerKind.EXPIRY)


class Timers:
    def __init__(self) -> None:
        self._deadlines: dict[Timer, int] = {}
        self._queued: dict[Timer, int] = {}  # the live heap entry of each key; all others in the heap are stale
        self._heap: list[tuple[int, Timer]] = []

    def schedule(self, timer: Timer, deadline_ms: int) -> None:
        self._deadlines[timer] = deadline_ms
        queued_ms = self._queued.get(timer)
        if queued_ms is None or deadline_ms < queued_ms:
            self._push(timer, deadline_ms)
            self._drop_stale()

    def cancel(self, timer: Timer) -> None:
        if self._deadlines.pop(timer, None) is not None:
            self._drop_stale()

    def __len__(self) -> int:
        """Return the number of timers that are scheduled."""
        return len(self._deadlines)

    @property
    def entry_count(self) -> int:
        """Return the number of heap entries, stale ones included."""
        return len(self._heap)

    def deadline(self, timer: Timer) -> int | None:
        return self._deadlines.get(timer)

    def next_deadline(self) -> int | None:
        while self._heap:
            queued_ms, timer = self._heap[0]
            deadline_ms = self._deadlines.get(timer)
            if deadline_ms == queued_ms and self._queued.get(timer) == queued_ms:
                return deadline_ms
            self._pop()
        return None

    def take_due(self, now_ms: int) -> list[Timer]:
        """Return the timers whose deadline has come, earliest first, and unschedule them."""
        due = []
        while (deadline_ms := self.next_deadline()) is not None and deadline_ms <= now_ms:
            timer = self._heap[0][1]
            del self._deadlines[timer]
            self._pop()
            due.append(timer)
        return due

    def _drop_stale(self) -> None:
        """Rebuild the heap from the live timers if most entries are stale; amortized over the cancels."""
        if len(self._heap) > 2 * len(self._deadlines) + STALE_ENTRIES_KEPT_MAX:
            self._queued = dict(self._deadlines)
            self._heap = [(deadline_ms, timer) for timer, deadline_ms in self._deadlines.items()]
            heapq.heapify(self._heap)

    def _push(self, timer: Timer, deadline_ms: int) -> None:
        self._queued[timer] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, timer))

    def _pop(self) -> None:
        queued_ms, timer = heapq.heappop(self._heap)
        if self._queued.get(timer) != queued_ms:
            return  # stale: the key was moved earlier and has a newer entry
        del self._queued[timer]
        if (deadline_ms := self._deadlines.get(timer)) is not None:
            self._push(timer, deadline_ms)
