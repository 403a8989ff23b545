"""The processor time of processes that come and go: never less than nothing, never twice."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

from bench.spark.usage import spent_s, usage

BUSY_S = 0.2
# Ignores its children, as Spark's daemons do, so that what they used is lost with them.
PARENT = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = os.fork()
if child == 0:
    while time.process_time() < {BUSY_S}: pass
    os.write(1, b"busy")
    time.sleep(60)
    os._exit(0)  # its parent may be gone by now; os.kill(child) would be a signal to the whole process group
sys.stdin.read()
os.kill(child, signal.SIGKILL)
try: os.wait()
except ChildProcessError: pass
os.write(1, b"gone")
time.sleep(60)
"""


@contextmanager
def parent_of_a_busy_child():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert os.read(process.stdout.fileno(), 4) == b"busy"
            yield process
        finally:
            process.kill()


def end_child(process):
    process.stdin.close()
    assert os.read(process.stdout.fileno(), 4) == b"gone"


def test_what_a_child_uses_counts():
    with parent_of_a_busy_child() as process:
        # The kernel tells whole ticks, of user and of system time each, and up to one of each is not told yet.
        assert spent_s({}, usage(process.pid)) >= BUSY_S / 2


def test_a_child_that_ends_takes_nothing_from_the_sum():
    with parent_of_a_busy_child() as process:
        before = usage(process.pid)
        end_child(process)
        assert spent_s(before, usage(process.pid)) >= 0


def test_other_processes_do_not_count():
    with parent_of_a_busy_child() as process:
        assert os.getpid() not in usage(process.pid)
        assert process.pid in usage(os.getpid())
