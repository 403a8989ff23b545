"""SIGKILL under load, again and again on the same data: nothing acknowledged or seen is lost (S1 to S3, S7, S8).

FLOWSTONE_FAULTS_KILLS sets how many kills, FLOWSTONE_FAULTS_SEED where their choice begins.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from flowstone.config import LONG_MAX
from tests.support.broker_process import BrokerProcess

from .checker import Fault
from .crash_points import CrashPoint, choose
from .rounds import Rounds, describe

KILLS = int(os.environ.get("FLOWSTONE_FAULTS_KILLS", "20"))
FIRST_SEED = int(os.environ.get("FLOWSTONE_FAULTS_SEED", "1"))
KILLS_PER_DIRECTORY = 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(KILLS // KILLS_PER_DIRECTORY, 1)))
def test_a_killed_broker_keeps_what_it_acknowledged_and_what_was_seen(tmp_path: Path, seed: int) -> None:
    # Every other directory leaves flushing to the page cache: a killed process loses nothing then either.
    settings = {"flush.messages": "1" if seed % 2 else str(LONG_MAX)}
    with ExitStack() as stack:
        rounds = Rounds(tmp_path / "data", stack, seed=seed, settings=settings)
        points = [choose(rounds.chance) for _ in range(min(KILLS, KILLS_PER_DIRECTORY))]
        for point in [*points, CrashPoint("the last", acknowledged=0)]:
            anomalies = rounds.live_and_die(Fault.KILL, point, _pause_and_kill if point.pauses else BrokerProcess.kill)
            assert not anomalies, describe(anomalies, f"found at the start of: {point.name}")
        assert not rounds.refusals
        assert " ERROR " not in rounds.output, rounds.output
        assert rounds.history.acknowledged_count > 0
        print(rounds.summary)


def _pause_and_kill(broker: BrokerProcess) -> None:
    broker.pause()
    broker.kill()
