from __future__ import annotations

import os
import subprocess
import sys

from bench import processes

BURN = "import time\nwhile time.process_time() < 0.2: pass"


def test_what_a_child_used_is_still_counted_when_it_has_ended() -> None:
    before = processes.ended_cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True, timeout=60)
    assert processes.ended_cpu_seconds(os.getpid()) - before >= 0.19
