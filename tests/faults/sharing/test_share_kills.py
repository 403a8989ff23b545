"""Share groups on a broker that kills itself before, after or amid a write: accepted stays accepted, nothing is lost.

A few crash points for each ordering run here; `FLOWSTONE_FAULTS_SHARE_KILLS` is their number in all.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.crash_points import sabotaged
from tests.support.sharing.killed_work import Work

KILLS = int(os.environ.get("FLOWSTONE_FAULTS_SHARE_KILLS", "6"))
ORDERINGS = ("none", "key")
# The first writes of a life are those of the start; a second of work has about so many.
START_WRITES, WRITES = 10, 200
# The broker is killed so often with one log, which is read in full at the end.
KILLS_PER_LOG = 10


@pytest.mark.timeout(300 + 5 * KILLS)
@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_kill_at_a_write_loses_nothing_and_brings_nothing_back(tmp_path: Path, ordering: str) -> None:
    left = KILLS // len(ORDERINGS)
    seed = 0
    while left > 0:
        chance = random.Random(f"{ordering} {seed}")
        points = [_point(chance) for _ in range(min(left, KILLS_PER_LOG))]
        print(f"{ordering} {seed}: {points}")
        work = Work(tmp_path / str(seed), seed, ordering)
        work.run([sabotaged("die_at", "write", number, moment) for number, moment in points])
        left -= len(points)
        seed += 1


def _point(chance: random.Random) -> tuple[int, str]:
    """Return the number of the write and the moment; every third is among the first ones."""
    number = chance.randint(1, START_WRITES if chance.random() < 0.33 else WRITES)
    return number, chance.choice(("before", "half", "half", "after"))
