"""Callbacks that wait for an offset, and watchers that are told whenever there is more to read.

Both are created with the first waiter or watcher: most of a broker's thousands of partitions never have one, and an
empty queue takes three quarters of a kilobyte. A callback or watcher may register again while it is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from flowstone.errors import ErrorCode

# Called once: with NONE when the offset is reached, otherwise with the reason why it may never be.
OnReached = Callable[[ErrorCode], None]
# In ascending order of offsets, because records are appended and waited for in order.
Waiters = deque[tuple[int, OnReached]]

# Shared by all partitions that never had a waiter.
NO_WAITERS: Waiters = deque(maxlen=0)


def add_waiter(waiters: Waiters, offset: int, callback: OnReached) -> Waiters:
    """Return the queue with one more waiter at its end."""
    if waiters is NO_WAITERS:
        waiters = deque()
    waiters.append((offset, callback))
    return waiters


def answer_reached(waiters: Waiters, offset: int) -> None:
    """Call the callbacks that wait for `offset` or an offset below it, with NONE."""
    while waiters and waiters[0][0] <= offset:
        waiters.popleft()[1](ErrorCode.NONE)


def answer_all(waiters: Waiters, code: ErrorCode) -> None:
    """Call all present callbacks with `code`, but none that is added meanwhile."""
    for _ in range(len(waiters)):
        waiters.popleft()[1](code)


class Watcher(Protocol):
    """The interface of a request that waits for a partition to have more to read."""

    def advanced(self, size_bytes: int) -> None:
        """Record that about `size_bytes` more can be read."""
        ...

    def interrupted(self) -> None:
        """Record that the partition has changed in another way, so that it must be read again."""
        ...


class Watchers:
    """The watchers of one bound of a partition, such as its high watermark."""

    __slots__ = ("_watchers", "unwatch", "watch")

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self.watch: Callable[[Watcher], None] = self._watchers.add
        self.unwatch: Callable[[Watcher], None] = self._watchers.discard

    def __len__(self) -> int:
        return len(self._watchers)

    def advanced(self, size_bytes: int) -> None:
        for watcher in tuple(self._watchers):
            watcher.advanced(size_bytes)

    def interrupted(self) -> None:
        for watcher in tuple(self._watchers):
            watcher.interrupted()
