from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from flowstone.cli.up.process import GC_THRESHOLDS

pytestmark = pytest.mark.measures_time
PAUSE_S_MAX = 0.05

_GROW = """
import gc, time
from flowstone.cli.up.process import collector_paused
with collector_paused():
    pass
longest_s = started_s = 0.0
def note(phase, info):
    global longest_s, started_s
    if phase == "start":
        started_s = time.thread_time()
    else:
        longest_s = max(longest_s, time.thread_time() - started_s)
gc.callbacks.append(note)
kept = [(number, [number]) for number in range(1_500_000)]
print(longest_s)
"""


def test_the_garbage_collector_does_not_pause_a_growing_broker_for_long() -> None:
    """A million objects are some ten thousand topics."""
    pauses_s = [float(subprocess.check_output([sys.executable, "-c", _GROW])) for _ in range(2)]
    assert min(pauses_s) < PAUSE_S_MAX
    assert gc.get_threshold() != GC_THRESHOLDS, "the thresholds are a broker's own"
