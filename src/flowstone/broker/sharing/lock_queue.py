"""The deadlines of acquired records' locks: a queue of ranges in the order of their deadlines.

An entry is a hint: records that were acknowledged, or whose lock was renewed, have another deadline or none by then, so
that the owner checks each range. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from flowstone.broker.sharing.window import ACQUIRED, Range, Window

# The queue is rebuilt from the window when it has so many entries more than the window has ranges.
OBSOLETE_MAX = 1024


class LockQueue:
    def __init__(self, window: Window) -> None:
        self._window = window
        self._locks: deque[tuple[int, int, int]] = deque()  # (deadline, first, last)

    def add(self, deadline_ms: int, first: int, last: int) -> None:
        """Record that these records are locked until `deadline_ms`."""
        locks = self._locks
        is_out_of_order = bool(locks) and locks[-1][0] > deadline_ms
        locks.append((deadline_ms, first, last))
        if is_out_of_order or len(locks) > self._window.range_count + OBSOLETE_MAX:
            held = [(each.deadline_ms, each.first, each.last) for each in self._window if each.state is ACQUIRED]
            self._locks = deque(sorted(held))

    def clear(self) -> None:
        self._locks.clear()

    def take_due(self, now_ms: int) -> Iterable[tuple[int, int]]:
        """Yield the ranges in the window in which locks may have ended."""
        while self._locks and self._locks[0][0] <= now_ms:
            _, first, last = self._locks.popleft()
            if last >= self._window.start:
                yield max(first, self._window.start), last

    def next_deadline(self) -> int | None:
        """Return when the next lock may end."""
        while self._locks and self._locks[0][2] < self._window.start:
            self._locks.popleft()
        return self._locks[0][0] if self._locks else None


def has_expired(each: Range, now_ms: int) -> bool:
    """Return whether the lock of records has ended, and nothing has been decided about them."""
    return each.state is ACQUIRED and each.target is None and each.deadline_ms <= now_ms
