from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flowstone.broker.disk_trend import SAMPLES_MAX, WINDOW_S, FreeSpaceTrend


def trend_of(*samples: tuple[float, int]) -> FreeSpaceTrend:
    trend = FreeSpaceTrend()
    for now_s, usable_bytes in samples:
        trend.note(now_s, usable_bytes)
    return trend


def test_nothing_is_known_at_first() -> None:
    assert trend_of((0, 1000)).seconds_until(0) == math.inf


def test_a_disk_that_fills_up_evenly_is_full_when_it_should_be() -> None:
    assert trend_of((0, 1000), (100, 900), (200, 800)).seconds_until(300) == 500


def test_below_the_floor_nothing_is_left() -> None:
    assert trend_of((0, 1000), (100, 500)).seconds_until(600) == 0


def test_a_disk_that_gets_room_back_never_fills() -> None:
    assert trend_of((0, 1000), (100, 1200)).seconds_until(0) == math.inf


def test_a_burst_is_no_trend() -> None:
    assert trend_of((0, 1000), (10, 500)).seconds_until(0) == math.inf


def test_leaps_of_retention_are_no_trend() -> None:
    """It fills up with 100 a second and retention takes as much back every five minutes."""
    trend, trends = FreeSpaceTrend(), []
    for now_s in range(0, 7200, 5):
        trend.note(now_s, 1_000_000 - 100 * (now_s % 300))
        trends.append(trend.filling_bytes_per_s)
    assert max(trends[400:]) <= 34


def test_what_was_long_ago_does_not_count() -> None:
    samples = [(float(now_s), 10_000_000) for now_s in range(0, 10_000, 5)]
    samples += [(10_000 + now_s, 10_000_000 - 1000 * now_s) for now_s in range(0, int(2 * WINDOW_S), 5)]
    assert round(trend_of(*samples).filling_bytes_per_s) == 1000


@given(st.lists(st.floats(0.01, 30), max_size=2000))
def test_memory_is_bounded_however_often_it_is_looked_at(gaps: list[float]) -> None:
    trend, now_s = FreeSpaceTrend(), 0.0
    for gap in gaps:
        now_s += gap
        trend.note(now_s, 1)
    assert len(trend._samples) <= 2 * SAMPLES_MAX + 2
