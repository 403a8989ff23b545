"""SIGKILL in the middle of rebalances and commits, again and again on the same data (G1 to G5).

FLOWSTONE_FAULTS_GROUP_KILLS sets how many kills, FLOWSTONE_FAULTS_SEED where their choice begins.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from .crash_points import choose
from .group_rounds import GroupRounds
from .rounds import describe

KILLS = int(os.environ.get("FLOWSTONE_FAULTS_GROUP_KILLS", "6"))
FIRST_SEED = int(os.environ.get("FLOWSTONE_FAULTS_SEED", "1"))
KILLS_PER_DIRECTORY = 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(KILLS // KILLS_PER_DIRECTORY, 1)))
def test_a_group_keeps_its_commits_and_is_never_stuck_when_the_broker_is_killed(tmp_path: Path, seed: int) -> None:
    with ExitStack() as stack:
        rounds = GroupRounds(tmp_path / "data", stack, seed=seed)
        for point in [choose(rounds.chance) for _ in range(min(KILLS, KILLS_PER_DIRECTORY))]:
            rounds.live_and_die(point)
            assert not rounds.anomalies, describe(rounds.anomalies, f"up to: {point.name}")
        rounds.live_to_the_end()
        assert not rounds.anomalies, describe(rounds.anomalies, "in the last life")
        assert " ERROR " not in rounds.output, rounds.output
        assert rounds.group.acknowledged_count > 0
        print(rounds.summary)
