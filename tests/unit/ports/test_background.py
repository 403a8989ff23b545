"""Who goes first. Work in the background is as nice as asked, its session too, and nobody else's."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from flowstone.ports.background import _SCHED_SETATTR, LONG_SLICE_NS, SHORT_SLICE_NS

AUTOGROUP = Path("/proc/self/autogroup")
GIVE_WAY = """
import os
from pathlib import Path
from flowstone.ports.background import set_background_priority
set_background_priority(15)
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))
autogroup = Path("/proc/self/autogroup")
print(autogroup.read_text() if autogroup.exists() else "")
"""


def gives_way(*, own_session: bool) -> list[str]:
    command = [sys.executable, "-c", GIVE_WAY]
    return subprocess.check_output(command, text=True, start_new_session=own_session).splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other schedulers")
def test_a_process_that_gives_way_is_nice_and_asks_for_no_short_turns():
    assert gives_way(own_session=True)[0] == f"15 {os.SCHED_BATCH}"


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="sessions are not scheduled as groups here")
def test_its_session_gives_way_with_it_but_not_one_that_others_are_in():
    before = AUTOGROUP.read_text()
    assert gives_way(own_session=True)[1].endswith("nice 15")
    assert gives_way(own_session=False)[1] == before.strip()
    assert AUTOGROUP.read_text() == before


TURNS = """
import ctypes, os, struct, threading
from flowstone.ports.background import _SCHED_ATTR, _SCHED_SETATTR, request_long_slices, request_short_slices
import platform

def turns():
    # sched_getattr has the next number on every machine: policy, niceness and slice, 0 before Linux 6.12.
    attributes = ctypes.create_string_buffer(_SCHED_ATTR.size)
    number = _SCHED_SETATTR[platform.machine()] + 1
    assert ctypes.CDLL(None).syscall(number, 0, attributes, _SCHED_ATTR.size, 0) == 0
    _, policy, _, niceness, _, slice_ns, *_ = _SCHED_ATTR.unpack(attributes)
    print(policy, niceness, slice_ns)

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def long_turns():
    request_long_slices()
    turns()

os.nice(3)
request_short_slices()
turns()
in_thread(turns)
in_thread(long_turns)
turns()
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
request_short_slices()
turns()
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in _SCHED_SETATTR, reason="other systems have other schedulers"
)
def test_turns_are_a_threads_own_and_niceness_is_left_alone():
    told = [line.split() for line in subprocess.check_output([sys.executable, "-c", TURNS], text=True).splitlines()]
    slices = [slice_ns for *_, slice_ns in told]
    nice = str(min(os.nice(0) + 3, 19))
    assert [(policy, niceness) for policy, niceness, _ in told[:4]] == [(each, nice) for each in ("0", "0", "3", "0")]
    if slices[0] != "0":  # a system that keeps what it was asked for
        assert slices[:4] == [str(SHORT_SLICE_NS), str(SHORT_SLICE_NS), str(LONG_SLICE_NS), str(SHORT_SLICE_NS)]
    assert told[4][0] == str(os.SCHED_IDLE)  # somebody chose that
