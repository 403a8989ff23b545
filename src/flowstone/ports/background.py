"""Who gets a processor first: whoever others wait for, the broker's loop and its flushes. Work that can wait gives way.

A lower priority alone does not do that on Linux. Niceness counts among the processes of one session only, where
sessions are scheduled as groups (autogroup), so a session of its own must be made nice as a whole. And whoever wakes up
still waits until the one that runs has had its slice, which is looked at when the clock ticks: 4 ms where it ticks 250
times a second. Who has a shorter slice than that one need not wait (from Linux 6.12), so work that can wait asks for
the longest there is, and whoever others wait for asks for the shortest.

Nobody gets more of a processor than before, and processors that are free are used in full.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

NICENESS = 19
LONG_SLICE_NS, SHORT_SLICE_NS = 100_000_000, 100_000  # the longest and the shortest there is

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER, _SCHED_BATCH = 0, 3
# struct sched_attr: its size, policy, flags, niceness, priority, runtime, deadline, period, utilisation bounds.
_SCHED_ATTR = struct.Struct("=IIQiIQQQII")


def be_nice(niceness: int = NICENESS) -> None:
    """The calling process, at its start, and its session, if that is its own; as far as the system lets it."""
    with suppress(OSError):  # it is nicer already
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if os.getsid(0) == os.getpid():  # else the session is somebody else's
        with suppress(OSError):  # there are no groups
            Path("/proc/self/autogroup").write_text(str(niceness))


def give_way(niceness: int = NICENESS) -> None:
    """Is nice, and asks for no short turns: whoever wakes up goes first."""
    be_nice(niceness)
    take_long_turns()


def take_long_turns() -> None:
    """The calling thread lets whoever wakes up go first."""
    _ask_for(_SCHED_BATCH, LONG_SLICE_NS)


def take_short_turns() -> None:
    """The calling thread, and those it starts, need not wait for the slices of others when they wake up."""
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) == _SCHED_OTHER:  # else somebody chose otherwise
        _ask_for(_SCHED_OTHER, SHORT_SLICE_NS)


def let_others_run() -> None:
    """Whoever waits for the processor that the calling thread runs on has it first."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def _ask_for(policy: int, slice_ns: int) -> None:
    number = _SCHED_SETATTR.get(platform.machine()) if platform.system() == "Linux" else None
    if number is not None:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, policy, 0, niceness, 0, slice_ns, 0, 0, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # what it does not know it leaves as it is
