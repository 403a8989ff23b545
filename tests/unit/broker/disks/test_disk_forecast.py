from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flowstone.broker.disks.disk_forecast import (
    GROWN_BYTES_MIN,
    HISTORY_MIN_S,
    SAMPLES_MAX,
    WINDOW_S,
    LogGrowth,
    duration_text,
    size_text,
)
from flowstone.config import GIB, MIB

HOUR_S = 3600.0


def growth_of(*samples: tuple[float, int]) -> LogGrowth:
    """Of logs on a disk that nobody else writes to."""
    growth = LogGrowth()
    for now_s, logs_bytes in samples:
        growth.note(now_s, logs_bytes, 100 * GIB - logs_bytes)
    return growth


def test_nothing_is_known_at_first() -> None:
    assert not LogGrowth().is_known
    assert LogGrowth().seconds_until_taken(0) == math.inf
    assert growth_of((0, GIB)).seconds_until_taken(0) == math.inf


def test_there_is_no_forecast_from_too_little_history() -> None:
    assert growth_of((0, 0), (HISTORY_MIN_S - 1, 10 * GIB)).seconds_until_taken(GIB) == math.inf
    assert growth_of((0, 0), (HISTORY_MIN_S, 10 * GIB)).seconds_until_taken(GIB) < math.inf


def test_logs_that_grow_evenly_fill_the_disk_when_they_should() -> None:
    assert growth_of((0, 0), (HOUR_S, 2 * GIB), (2 * HOUR_S, 4 * GIB)).seconds_until_taken(6 * GIB) == 3 * HOUR_S


def test_logs_that_shrink_or_hardly_grow_fill_nothing() -> None:
    assert growth_of((0, GIB), (HOUR_S, GIB // 2)).seconds_until_taken(1) == math.inf
    assert growth_of((0, 0), (HOUR_S, GROWN_BYTES_MIN - 1)).seconds_until_taken(1) == math.inf


def test_what_other_programs_take_is_no_growth_and_counted_apart() -> None:
    growth = LogGrowth()
    growth.note(0, MIB, 100 * GIB)
    growth.note(HOUR_S, 2 * MIB, 40 * GIB)
    assert growth.seconds_until_taken(40 * GIB) == math.inf
    assert (growth.grown_bytes, growth.others_bytes) == (MIB, 60 * GIB - MIB)


def test_an_hour_says_nothing_about_the_next_month() -> None:
    growth = growth_of((0, 0), (HOUR_S, GIB))
    assert growth.seconds_until_taken(20 * GIB) == 20 * HOUR_S
    assert growth.seconds_until_taken(1000 * GIB) == math.inf


def test_leaps_of_retention_are_no_growth() -> None:
    """The logs grow by 10 MiB a minute, and retention takes as much back every hour."""
    growth, rates = LogGrowth(), []
    for minute in range(24 * 60):
        growth.note(minute * 60.0, GIB + 10 * MIB * (minute % 60), 50 * GIB)
        rates.append(growth.bytes_per_s)
    assert max(rates[6 * 60 :]) <= 10 * MIB / 60 / 6


def test_what_was_long_ago_does_not_count() -> None:
    samples = [(float(now_s), GIB) for now_s in range(0, 100_000, 60)]
    samples += [(100_000.0 + now_s, GIB + 10_000 * now_s) for now_s in range(0, int(2 * WINDOW_S), 60)]
    assert round(growth_of(*samples).bytes_per_s) == 10_000


@given(st.lists(st.floats(0.01, 200), max_size=3000))
def test_memory_is_bounded_however_often_it_is_looked_at(gaps: list[float]) -> None:
    growth, now_s = LogGrowth(), 0.0
    for gap in gaps:
        now_s += gap
        growth.note(now_s, 1, 1)
    assert len(growth._samples) <= 2 * SAMPLES_MAX + 2


def test_sizes_and_times_are_text_for_people() -> None:
    assert [size_text(size) for size in (0, 1023, 3 * GIB // 2, -MIB)] == ["0 B", "1023 B", "1.5 GiB", "-1.0 MiB"]
    assert [duration_text(seconds) for seconds in (90, 3 * HOUR_S)] == ["2 minutes", "3.0 h"]
