from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.cpu_waits import CpuWaits

BUSY_S = 0.4
SPIN = """
import os, time
os.sched_setaffinity(0, {%d})
print(flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    pass
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux tells")
def test_a_thread_that_shares_its_processor_waits_for_it():
    allowed = os.sched_getaffinity(0)
    processor = min(allowed)
    with subprocess.Popen([sys.executable, "-c", SPIN % processor], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()  # it spins now
            os.sched_setaffinity(0, {processor})
            waits = CpuWaits((os.getpid(), threading.get_native_id()))
            before_s, end = waits.total_s(), time.monotonic() + BUSY_S
            while time.monotonic() < end:
                pass
            assert waits.total_s() - before_s > BUSY_S / 5
        finally:
            os.sched_setaffinity(0, allowed)
            other.kill()


def test_nothing_is_told_of_a_thread_that_does_not_exist():
    assert CpuWaits((os.getpid(), 2**22 + 1)).total_s() == 0
