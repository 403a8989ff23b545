"""Files made durable by native threads, and the event loop told of it.

Owns the descriptor that wakes the loop and the files while they are synced: their descriptors stay open until the
outcome is known. Whoever wants something else than syncing one file uses threads of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from flowstone.kernel.sync_threads import SyncThreads
from flowstone.ports.files import File

Token = TypeVar("Token")

_WAKE_BYTES = 4096  # as much as one look takes from a pipe; an event descriptor has eight


class FileSyncs(Generic[Token]):
    """Syncs the files given to `submit` together; `on_done(token, error)` comes on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread_count: int,
        on_done: Callable[[Token, OSError | None], None],
    ) -> None:
        self._loop = loop
        self._on_done = on_done
        self._under_way: dict[int, tuple[Token, Sequence[File]]] = {}
        self._tickets = 0
        self._wake_read, self._wake_write = _wake_descriptors()
        try:
            self._threads = SyncThreads(thread_count, self._wake_write)
        except BaseException:
            self._close_descriptors()
            raise
        loop.add_reader(self._wake_read, self._woken)

    def submit(self, token: Token, files: Sequence[File]) -> None:
        """Have one thread sync these files, one after the other."""
        self._tickets += 1
        self._under_way[self._tickets] = token, files
        self._threads.submit([file.fileno() for file in files], self._tickets)

    def stop(self) -> list[tuple[Token, OSError | None]]:
        """Waits for the syncs under way; their outcomes, which `on_done` does not hear of."""
        self._threads.stop()
        outcomes = self._take()
        assert not self._under_way
        self._threads.free()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._wake_read)
        self._close_descriptors()
        return outcomes

    def _woken(self) -> None:
        os.read(self._wake_read, _WAKE_BYTES)
        for token, error in self._take():
            self._on_done(token, error)

    def _take(self) -> list[tuple[Token, OSError | None]]:
        outcomes: list[tuple[Token, OSError | None]] = []
        for ticket, number in self._threads.take():
            token, files = self._under_way.pop(ticket)
            outcomes.append((token, _error(number, files) if number else None))
        return outcomes

    def _close_descriptors(self) -> None:
        for descriptor in {self._wake_read, self._wake_write}:
            os.close(descriptor)


def _error(number: int, files: Sequence[File]) -> OSError:
    return OSError(number, os.strerror(number), ", ".join(file.path for file in files))


def _wake_descriptors() -> tuple[int, int]:
    if hasattr(os, "eventfd"):
        descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return descriptor, descriptor
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write
