"""Native sync threads through ctypes: descriptors in, outcomes out. Nothing here knows what the descriptors are.

Importing this module raises ImportError unless the library is there and has the calls. There is no Python twin: Python
threads that call `fdatasync` do the same work, and whoever wants them has them (log/lifecycle/flusher.py).

The calls hold the GIL: each keeps a lock for a few list operations, which takes less time than getting the GIL back.
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
    _stop = ctypes.CDLL(holding_library._name).flowstone_sync_threads_stop  # waits: lets other Python threads run
    _free = holding_library.flowstone_sync_threads_free
except AttributeError as error:
    raise ImportError(f"the native kernel has no sync threads: {error}") from error

_start.argtypes, _start.restype = (ctypes.c_int64, ctypes.c_int64), _Pointer
_submit.argtypes, _submit.restype = (_Pointer, _Pointer, ctypes.c_int64, ctypes.c_int64), ctypes.c_int64
_take.argtypes, _take.restype = (_Pointer, _Pointer, ctypes.c_int64), ctypes.c_int64
_stop.argtypes, _stop.restype = (_Pointer,), None
_free.argtypes, _free.restype = (_Pointer,), None


class SyncThreads:
    """Belongs to one thread. Every outcome is taken before `free`."""

    def __init__(self, thread_count: int, wake_descriptor: int) -> None:
        """Eight bytes are written to `wake_descriptor` when there is something to take again."""
        threads = _start(thread_count, wake_descriptor)
        if threads is None:
            raise OSError(f"{thread_count} sync threads do not start")
        self._threads = ctypes.c_void_p(threads)
        self._outcomes = _Outcomes()

    def submit(self, descriptors: Sequence[int], ticket: int) -> None:
        """One job: its outcome is there when all of them are synced, or one has failed."""
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
        """Returns when everything submitted is done; `take` still works."""
        _stop(self._threads)

    def free(self) -> None:
        _free(self._threads)
