"""Work in the background: as nice as asked, its session too, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
GIVE_WAY = """
import os
from pathlib import Path
from flowstone.ports.background import give_way
give_way(15)
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
