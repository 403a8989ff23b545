"""The power fails under load: what acks=all acknowledged and what consumers saw is there after the next start.

A real ext4 on a loop device is shut down without its journal being written, unmounted and mounted again. acks=1 is not
promised to survive that, but what is left of it is still a prefix of what was written (S1 to S3, S8).
FLOWSTONE_FAULTS_POWER_LOSSES sets how often.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess

from .checker import ACKS_ALL, Fault
from .crash_points import ACKNOWLEDGED_MAX, CrashPoint, sabotaged
from .filesystems import LoopExt4, loop_ext4
from .rounds import Rounds, describe

POWER_LOSSES = int(os.environ.get("FLOWSTONE_FAULTS_POWER_LOSSES", "4"))
FIRST_SEED = int(os.environ.get("FLOWSTONE_FAULTS_SEED", "1"))
LOSSES_PER_DIRECTORY = 4 if POWER_LOSSES > 4 else 2
# More logs at once than are flushed one by one: one syncfs serves them all, if the directory is its own file system.
# The disk is slowed down for it, or the crowd would never gather.
CROWD_PARTITIONS = 100
CROWD_SYNC_S = 0.01
CROWD_IN_FLIGHT = 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(POWER_LOSSES // LOSSES_PER_DIRECTORY, 1)))
def test_what_was_acknowledged_with_acks_all_or_seen_survives_a_power_loss(tmp_path: Path, seed: int) -> None:
    with loop_ext4(tmp_path) as filesystem, ExitStack() as stack:
        if seed % 2:
            rounds = Rounds(filesystem.path / "data", stack, seed=seed)
        else:
            rounds = Rounds(
                filesystem.path,
                stack,
                seed=seed,
                partition_count=CROWD_PARTITIONS,
                in_flight_max=CROWD_IN_FLIGHT,
                program=sabotaged("slow_the_disk", CROWD_SYNC_S),
            )
            rounds.raw_producers = ((ACKS_ALL, False), (ACKS_ALL, True))
        for _ in range(min(POWER_LOSSES, LOSSES_PER_DIRECTORY)):
            lose_power_once(rounds, filesystem)
        anomalies = rounds.live_and_die(Fault.POWER_LOSS, CrashPoint("the last", acknowledged=0))
        assert not anomalies, describe(anomalies)
        assert not rounds.refusals
        print(rounds.summary)


def lose_power_once(rounds: Rounds, filesystem: LoopExt4) -> None:
    acknowledged = rounds.chance.randint(1, ACKNOWLEDGED_MAX)

    def end(broker: BrokerProcess) -> None:
        # Nothing runs without power. A broker that did would hear lies: an fdatasync under way while the file system
        # is being shut down can return success for bytes that are lost, which any program shows.
        broker.pause()
        filesystem.lose_power()

    anomalies = rounds.live_and_die(Fault.POWER_LOSS, CrashPoint("power loss", acknowledged), end)
    filesystem.restore_power()
    assert not anomalies, describe(anomalies)
