"""Syncing of files by native threads (`kernel/sync_threads.c`), with results delivered to the event loop.

Owns the threads, the descriptor that wakes the event loop, and the files during a sync: their descriptors stay open
until the result is known. Work other than syncing single files uses separate threads.

Importing this module raises ImportError if the native library is missing or lacks the calls. There is no Python twin:
Python threads that call `fdatasync` do the same work, and log/lifecycle/flusher.py uses them instead.

The native calls keep the GIL: each holds a lock for a few list operations, which takes less time than acquiring the GIL
again. Only waiting for the threads to end releases it.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from array import array
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from flowstone.kernel.native import holding_library
from flowstone.ports.files import File

logger = logging.getLogger(__name__)

Token = TypeVar("Token")

OUTCOMES_PER_TAKE_MAX = 256
_WAKE_BYTES = 4096  # maximum bytes read from a pipe at a time; an event descriptor has eight

_Pointer = ctypes.c_void_p
_OUTCOME_FIELDS = 2
_Outcomes = ctypes.c_int64 * (_OUTCOME_FIELDS * OUTCOMES_PER_TAKE_MAX)

try:
    _start = holding_library.flowstone_sync_threads_start
    _resize = holding_library.flowstone_sync_threads_resize
    _submit = holding_library.flowstone_sync_threads_submit
    _take = holding_library.flowstone_sync_threads_take
    _stop = ctypes.CDLL(holding_library._name).flowstone_sync_threads_stop  # blocks, so it releases the GIL
    _free = holding_library.flowstone_sync_threads_free
except AttributeError as error:
    raise ImportError(f"the native kernel has no sync threads: {error}") from error

_start.argtypes, _start.restype = (ctypes.c_int64, ctypes.c_int64), _Pointer
_resize.argtypes, _resize.restype = (_Pointer, ctypes.c_int64), ctypes.c_int64
_submit.argtypes, _submit.restype = (_Pointer, _Pointer, ctypes.c_int64, ctypes.c_int64), ctypes.c_int64
_take.argtypes, _take.restype = (_Pointer, _Pointer, ctypes.c_int64), ctypes.c_int64
_stop.argtypes, _stop.restype = (_Pointer,), None
_free.argtypes, _free.restype = (_Pointer,), None


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
            threads = _start(thread_count, self._wake_write)
            if threads is None:
                raise OSError(f"{thread_count} sync threads could not be started")
        except BaseException:
            self._close_descriptors()
            raise
        self._threads = ctypes.c_void_p(threads)
        self._outcomes = _Outcomes()
        loop.add_reader(self._wake_read, self._woken)

    def submit(self, token: Token, files: Sequence[File]) -> None:
        """Let one thread sync these files, one after the other."""
        self._tickets += 1
        self._under_way[self._tickets] = token, files
        descriptors = array("q", [file.fileno() for file in files])
        if _submit(self._threads, descriptors.buffer_info()[0], len(descriptors), self._tickets) != 0:
            raise MemoryError

    def resize(self, thread_count: int) -> None:
        """Change the number of threads. Surplus ones end after their current `submit`; none is lost or waits longer."""
        running_count = _resize(self._threads, thread_count)
        if running_count < thread_count:  # they do all the work, a little later
            logger.warning("%d of %d flush threads run: the system refuses to start more", running_count, thread_count)

    def stop(self) -> list[tuple[Token, OSError | None]]:
        """Wait for the running syncs and return their results, for which `on_done` is not called."""
        _stop(self._threads)
        outcomes = self._take()
        assert not self._under_way
        _free(self._threads)
        if not self._loop.is_closed():
            self._loop.remove_reader(self._wake_read)
        self._close_descriptors()
        return outcomes

    def _woken(self) -> None:
        os.read(self._wake_read, _WAKE_BYTES)
        for token, error in self._take():
            self._on_done(token, error)

    def _take(self) -> list[tuple[Token, OSError | None]]:
        """Return the token and the error of each `submit` that is done."""
        outcomes: list[tuple[Token, OSError | None]] = []
        while count := _take(self._threads, self._outcomes, OUTCOMES_PER_TAKE_MAX):
            fields = self._outcomes[: _OUTCOME_FIELDS * count]
            for ticket, number in zip(fields[0::2], fields[1::2], strict=True):
                token, files = self._under_way.pop(ticket)
                outcomes.append((token, _error(number, files) if number else None))
            if count < OUTCOMES_PER_TAKE_MAX:
                break
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
