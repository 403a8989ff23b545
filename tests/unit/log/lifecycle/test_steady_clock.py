"""A wall clock that jumps ahead is not believed at once where something is deleted by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.log.lifecycle.steady_clock import DOUBT_MAX_S, HOLD_S, TOLERANCE_S, SteadyClock
from flowstone.log.manager import LogManager
from flowstone.ports.clock import SimulatedClock, SystemClock
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch

HOUR_MS = 3_600_000


class JumpingClock(SimulatedClock):
    """A machine's clock, whose wall time somebody may set."""

    jumped_ms = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.jumped_ms


@pytest.fixture
def machine() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def steady(machine: JumpingClock) -> SteadyClock:
    return SteadyClock(machine)


def is_believed(steady: SteadyClock, machine: JumpingClock) -> bool:
    return steady.time_ms() == machine.time_ms()


def pass_time(steady: SteadyClock, machine: JumpingClock, seconds: float, *, appends: bool = False) -> None:
    """Time passes with a look every five minutes, as retention does; clients may append at the machine's true time."""
    for _ in range(int(seconds // 300)):
        machine.advance(300)
        steady.time_ms()
        if appends:
            steady.appended(machine.time_ms() - machine.jumped_ms - 1000)


def test_time_that_goes_on_is_believed(steady: SteadyClock, machine: JumpingClock) -> None:
    machine.advance(30 * 24 * 3600)
    assert is_believed(steady, machine)


def test_after_a_jump_ahead_the_time_goes_on_from_before_it(steady: SteadyClock, machine: JumpingClock) -> None:
    machine.jumped_ms = 2 * HOUR_MS
    machine.advance(8)
    assert steady.time_ms() == machine.time_ms() - 2 * HOUR_MS
    assert steady.is_in_doubt


def test_a_clock_that_is_corrected_is_believed_again(steady: SteadyClock, machine: JumpingClock) -> None:
    machine.jumped_ms = 2 * HOUR_MS
    steady.time_ms()
    machine.jumped_ms = 0
    machine.advance(8)
    assert is_believed(steady, machine)
    assert not steady.is_in_doubt


def test_a_clock_that_stays_ahead_is_believed_after_a_while(steady: SteadyClock, machine: JumpingClock) -> None:
    machine.jumped_ms = 2 * HOUR_MS
    steady.time_ms()
    pass_time(steady, machine, HOLD_S - 300)
    assert not is_believed(steady, machine)
    pass_time(steady, machine, 300)
    assert is_believed(steady, machine)


def test_records_that_contradict_the_clock_prolong_the_doubt_for_a_day(
    steady: SteadyClock, machine: JumpingClock
) -> None:
    machine.jumped_ms = 2 * HOUR_MS
    steady.time_ms()
    pass_time(steady, machine, DOUBT_MAX_S - 300, appends=True)
    assert not is_believed(steady, machine)
    pass_time(steady, machine, 300, appends=True)
    assert is_believed(steady, machine)


def test_old_records_do_not_contradict_the_clock(steady: SteadyClock, machine: JumpingClock) -> None:
    machine.jumped_ms = 2 * HOUR_MS
    steady.time_ms()
    for _ in range(12):
        pass_time(steady, machine, 300)
        steady.appended(machine.time_ms() - 24 * HOUR_MS)
    assert is_believed(steady, machine)


def test_a_clock_that_goes_back_is_believed_at_once_and_when_it_is_right_again(
    steady: SteadyClock, machine: JumpingClock
) -> None:
    machine.jumped_ms = -2 * HOUR_MS
    assert is_believed(steady, machine)
    machine.jumped_ms = 0
    machine.advance(8)
    assert is_believed(steady, machine)


def test_a_clock_that_drifts_is_believed(steady: SteadyClock, machine: JumpingClock) -> None:
    for _ in range(48):
        machine.jumped_ms += int(TOLERANCE_S * 1000 / 3)
        pass_time(steady, machine, HOLD_S / 2)
        assert is_believed(steady, machine)


def test_the_latest_time_is_never_behind_the_expected_time(steady: SteadyClock, machine: JumpingClock) -> None:
    expected_ms = machine.time_ms()
    machine.jumped_ms = -HOUR_MS
    assert steady.latest_ms() == expected_ms
    machine.jumped_ms = HOUR_MS
    assert steady.latest_ms() == expected_ms + HOUR_MS


def test_a_jump_is_warned_of_once_and_says_what_to_do(
    steady: SteadyClock, machine: JumpingClock, caplog: pytest.LogCaptureFixture
) -> None:
    machine.jumped_ms = 2 * HOUR_MS
    for _ in range(3):
        steady.time_ms()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "jumped ahead by 7200 s" in record.message
    assert "correct it" in record.message


def test_after_a_long_stop_the_time_goes_on_from_the_stop_for_a_while(machine: JumpingClock) -> None:
    stopped_ms = machine.time_ms() - 3 * HOUR_MS
    steady = SteadyClock(machine, stopped_ms)
    assert steady.time_ms() == stopped_ms
    pass_time(steady, machine, HOLD_S)
    assert is_believed(steady, machine)


def test_after_a_short_stop_the_clock_is_believed(machine: JumpingClock) -> None:
    assert is_believed(SteadyClock(machine, machine.time_ms() - 60_000), machine)


def test_a_clock_without_a_past_is_compared_with_the_first_records(machine: JumpingClock) -> None:
    steady = SteadyClock(machine, needs_witness=True)
    newest_ms = machine.time_ms() - 2 * HOUR_MS
    steady.newest_record(newest_ms)
    assert steady.time_ms() == newest_ms
    pass_time(steady, machine, HOLD_S)
    assert is_believed(steady, machine)


def test_a_clock_that_agrees_with_the_first_records_is_believed_whatever_comes_then(machine: JumpingClock) -> None:
    steady = SteadyClock(machine, needs_witness=True)
    steady.newest_record(machine.time_ms() - 1000)
    assert not steady.needs_witness
    steady.newest_record(machine.time_ms() - 2 * HOUR_MS)
    assert is_believed(steady, machine)


def test_a_clock_needs_no_witness_after_a_while(machine: JumpingClock) -> None:
    steady = SteadyClock(machine, needs_witness=True)
    machine.advance(HOLD_S)
    assert not steady.needs_witness


class AheadClock(SystemClock):
    def time_ms(self) -> int:
        return super().time_ms() + 3 * HOUR_MS


def open_logs(path: Path, clock: SystemClock) -> LogManager:
    return LogManager(
        SystemFiles(),
        clock,
        BrokerConfig(log_dirs=str(path)),
        on_flushed=lambda log: None,
        on_fault=lambda fault: None,
        high_watermark_of=lambda log: log.log_end_offset,
    )


def test_a_broker_that_starts_with_its_clock_ahead_knows_when_it_last_ran_however_often_it_starts(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        before = open_logs(tmp_path, SystemClock())
        assert not before.steady_clock.is_in_doubt
        await before.directories[0].housekeeping.checkpoint()
        before.close()
        after = open_logs(tmp_path, AheadClock())
        assert abs(after.steady_clock.time_ms() - SystemClock().time_ms()) < 60_000
        await after.directories[0].housekeeping.checkpoint()
        after.close()
        again = open_logs(tmp_path, AheadClock())
        assert abs(again.steady_clock.time_ms() - SystemClock().time_ms()) < 60_000
        again.close()

    asyncio.run(scenario())


def test_a_broker_that_starts_empty_with_its_clock_ahead_keeps_the_records_it_gets(tmp_path: Path) -> None:
    async def scenario() -> None:
        logs = open_logs(tmp_path, AheadClock())
        config = TopicConfig(retention_ms=HOUR_MS)
        log = logs.get_or_create(TopicPartition("t", 0), bytes(16), config)
        log.append(build_batch([Record(0, SystemClock().time_ms(), b"k", b"v")]), leader_epoch=0)
        await logs.directories[0].housekeeping.apply_retention()
        assert log.log_start_offset == 0
        assert logs.steady_clock.is_in_doubt
        logs.abort()

    asyncio.run(scenario())
