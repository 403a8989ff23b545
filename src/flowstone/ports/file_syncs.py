"""Syncing of files by native threads, with results delivered to the event loop.

Owns the descriptor that wakes the event loop, and the files during a sync: their descriptors stay open until the result
is known. Work other than syncing single files uses separate threads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from flowstone.kernel.sync_threads import SyncThreads
from flowstone.ports.files import File

Token = TypeVar("Token")

_WAKE_BYTES = 4096  # maximum bytes read from a pipe at a time; an event descriptor has eight


class FileSyncs(Generic[Token]):
    """Syncs the files of each `submit` together, and then calls `on_done(token, error)` on the event loop."""

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
        """Wait for the running syncs and return their results, for which `on_done` is not called."""
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
