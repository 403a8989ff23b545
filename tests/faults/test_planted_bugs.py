"""A checker that cannot fail is worthless: each of these bugs, planted in a broker, must be caught (see sabotaged_up).

The bug is done to a real broker's own functions, and the same rounds and the same checker run as for the good one.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess

from .checker import ACKS_ALL, Anomaly, Fault
from .crash_points import CrashPoint, sabotaged
from .damage import flip_bit_above_recovery_point, flip_bit_below_recovery_point
from .filesystems import loop_ext4
from .rounds import Rounds

ROUNDS_MAX = 40  # a bug shows only where the end falls into the right moment; most do in the first rounds
ACKNOWLEDGED = 150
STALL_S = 0.2  # what is sent meanwhile is written, and not flushed before the power fails
AFTERMATH_S = 0.3  # a broker that runs on without its disk may still acknowledge


def kinds(anomalies: list[Anomaly]) -> set[str]:
    return {anomaly.kind for anomaly in anomalies}


@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        ("skip_the_flush", {"lost write", "unavailable"}),
        ("acknowledge_before_the_flush", {"lost write"}),
        ("show_before_the_flush", {"taken back"}),
        ("ignore_a_failed_flush", {"lost write"}),
    ],
)
def test_the_checker_catches_a_broker_that_loses_data_with_the_power(
    tmp_path: Path, bug: str, expected: set[str]
) -> None:
    with loop_ext4(tmp_path) as filesystem, ExitStack() as stack:
        stall = tmp_path / "stall"
        rounds = Rounds(
            filesystem.path / "data",
            stack,
            program=sabotaged(bug, stall),
            has_steady_producer=False,
            settings={"log.flush.offset.checkpoint.interval.ms": "60000"},  # it would find the disk gone, and stop
        )
        rounds.raw_producers = ((ACKS_ALL, False), (ACKS_ALL, True))

        def end(broker: BrokerProcess) -> None:
            stall.touch()
            broker.wait_for(STALL_S)
            if bug != "ignore_a_failed_flush":
                broker.pause()
            filesystem.lose_power()
            stall.unlink()
            broker.wait_for(AFTERMATH_S)

        for _ in range(ROUNDS_MAX):
            caught = kinds(rounds.live_and_die(Fault.POWER_LOSS, CrashPoint(bug, ACKNOWLEDGED), end))
            filesystem.restore_power()
            if caught:
                break
        assert caught & expected, caught


@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        # The broker finds out itself: it had noted a flush of what is not there, and the partition stays offline.
        ("write_later", {"lost write", "taken back", "lost partition"}),
        ("recover_one_batch_less", {"lost write", "taken back", "two values at one offset"}),
        ("forget_producers", {"duplicate", "two values at one offset"}),
    ],
)
def test_the_checker_catches_a_broker_that_loses_or_repeats_data_when_killed(
    tmp_path: Path, bug: str, expected: set[str]
) -> None:
    with ExitStack() as stack:
        steady = bug == "forget_producers"
        rounds = Rounds(tmp_path / "data", stack, program=sabotaged(bug), has_steady_producer=steady)
        for _ in range(ROUNDS_MAX):
            caught = kinds(rounds.live_and_die(Fault.KILL, CrashPoint(bug, ACKNOWLEDGED)))
            if caught:
                break
        assert caught & expected, caught


@pytest.mark.parametrize(
    ("bug", "flip", "expected"),
    [
        ("truncate_below_the_recovery_point", flip_bit_below_recovery_point, {"lost write"}),
        ("ignore_checksums_in_recovery", flip_bit_above_recovery_point, {"bad checksum"}),
    ],
)
def test_the_checker_catches_a_recovery_that_takes_damage_lightly(
    tmp_path: Path, bug: str, flip: object, expected: set[str]
) -> None:
    assert callable(flip)
    with ExitStack() as stack:
        rounds = Rounds(tmp_path / "data", stack, program=sabotaged(bug), has_steady_producer=False)
        assert not rounds.live_and_die(Fault.KILL, CrashPoint(bug, ACKNOWLEDGED))
        flip(rounds.data, rounds.partitions[0])
        caught = kinds(rounds.live_and_die(Fault.KILL, CrashPoint(bug, acknowledged=0)))
        assert caught & expected, caught
