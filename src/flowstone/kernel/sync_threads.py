"""Native threads that sync files, through ctypes: takes file descriptors, returns results.

Importing this module raises ImportError if the library is missing or lacks the calls. There is no Python twin: Python
threads that call `fdatasync` do the same work, and log/lifecycle/flusher.py uses them instead.

The calls keep the GIL: each holds a lock for a few list operations, which takes less time than acquiring the GIL again.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

from flowstone.kernel.native import holding_library

OUTCOMES_PER_TAKE_MAX = 256

_Pointer = ctypes.c_void_p
_OUTCOME_FIELDS = 2
_Outcomes = ctypes.c_int64 * (_OUTCOME_FIELDS * OUTCOMES_PER_TAKE_MAX)

try:
    _start = holding_library.flowstone_sync_threads_start
    _submit = holding_library.flowstone_sync_threads_submit
    _take = holding_library.flowstone_sync_threads_take
    _stop = ctypes.CDLL(holding_library._name).flowstone_sync_threads_stop  # blocks, so it releases the GIL
    _free = holding_library.flowstone_sync_threads_free
except AttributeError as error:
    raise ImportError(f"the native kernel has no sync threads: {error}") from error

_start.argtypes, _start.restype = (ctypes.c_int64, ctypes.c_int64), _Pointer
_submit.argtypes, _submit.restype = (_Pointer, _Pointer, ctypes.c_int64, ctypes.c_int64), ctypes.c_int64
_take.argtypes, _take.restype = (_Pointer, _Pointer, ctypes.c_int64), ctypes.c_int64
_stop.argtypes, _stop.restype = (_Pointer,), None
_free.argtypes, _free.restype = (_Pointer,), None


class SyncThreads:
    """A pool of sync threads, to be used by one Python thread. All results must be taken before `free`."""

    def __init__(self, thread_count: int, wake_descriptor: int) -> None:
        """Start the threads. They write eight bytes to `wake_descriptor` when there are new results to take."""
        threads = _start(thread_count, wake_descriptor)
        if threads is None:
            raise OSError(f"{thread_count} sync threads could not be started")
        self._threads = ctypes.c_void_p(threads)
        self._outcomes = _Outcomes()

    def submit(self, descriptors: Sequence[int], ticket: int) -> None:
        """Submit one job, which is done when all its descriptors are synced or one of them has failed."""
        block = array("q", descriptors)
        if _submit(self._threads, block.buffer_info()[0], len(block), ticket) != 0:
            raise MemoryError

    def take(self) -> list[tuple[int, int]]:
        """Return the ticket and the errno of each job that is done, 0 for success."""
        taken: list[tuple[int, int]] = []
        outcomes = self._outcomes
        while count := _take(self._threads, outcomes, OUTCOMES_PER_TAKE_MAX):
            fields = outcomes[: _OUTCOME_FIELDS * count]
            taken.extend(zip(fields[0::2], fields[1::2], strict=True))
            if count < OUTCOMES_PER_TAKE_MAX:
                break
        return taken

    def stop(self) -> None:
        """Wait until all submitted jobs are done and stop the threads; `take` still works afterwards."""
        _stop(self._threads)

    def free(self) -> None:
        _free(self._threads)
