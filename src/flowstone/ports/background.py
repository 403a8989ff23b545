"""Process and thread priorities: background work must not delay the event loop and its flushes.

A lower priority alone does not achieve this on Linux. If sessions are scheduled as groups (autogroup), niceness counts
only among the processes of one session, so a separate session must be made nice as a whole. In addition, a thread that
wakes up waits until the running thread's time slice ends, which the kernel checks at clock ticks, every 4 ms at 250 Hz.
A thread with a shorter time slice preempts one with a longer slice (from Linux 6.12). Background work therefore
requests the longest slice, and latency-critical threads request the shortest.

The total processor time of each thread is unchanged, and idle processors are used fully.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

NICENESS = 19
LONG_SLICE_NS, SHORT_SLICE_NS = 100_000_000, 100_000  # the longest and the shortest time slice

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER, _SCHED_BATCH = 0, 3
# struct sched_attr: its size, policy, flags, niceness, priority, runtime, deadline, period, utilisation bounds.
_SCHED_ATTR = struct.Struct("=IIQiIQQQII")


def lower_priority(niceness: int = NICENESS) -> None:
    """Lower the priority of the calling process, at its start, and of its session if that is its own.

    Does nothing where the system does not permit it.
    """
    with suppress(OSError):  # its niceness is already higher
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if os.getsid(0) == os.getpid():  # otherwise the session belongs to another process
        with suppress(OSError):  # autogroup scheduling is not available
            Path("/proc/self/autogroup").write_text(str(niceness))


def set_background_priority(niceness: int = NICENESS) -> None:
    """Lower the priority and request long time slices, so that threads that wake up preempt this process."""
    lower_priority(niceness)
    request_long_slices()


def request_long_slices() -> None:
    """Request long time slices for the calling thread, so that threads that wake up preempt it."""
    _request_slice(_SCHED_BATCH, LONG_SLICE_NS)


def request_short_slices() -> None:
    """Request short time slices for the calling thread and threads it starts, so that they preempt others."""
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) == _SCHED_OTHER:  # else another policy is set
        _request_slice(_SCHED_OTHER, SHORT_SLICE_NS)


def yield_processor() -> None:
    """Yield the processor of the calling thread to threads that wait for it."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def _request_slice(policy: int, slice_ns: int) -> None:
    number = _SCHED_SETATTR.get(platform.machine()) if platform.system() == "Linux" else None
    if number is not None:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, policy, 0, niceness, 0, slice_ns, 0, 0, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # unsupported requests are ignored
