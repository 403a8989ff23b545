"""The throttle of the log's workers: how long it waits, on a clock that only its waits move."""

from __future__ import annotations

import pytest

from flowstone.log.workers.throttle import WAIT_MIN_S, Throttle


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waits: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def test_what_is_spent_faster_than_the_limit_is_waited_for(time: Time) -> None:
    throttle = Throttle(1000, lambda: time.now_s, time.wait)
    throttle.spend(500)
    throttle.spend(250)
    assert time.waits == pytest.approx([0.5, 0.25])
    time.now_s += 0.1
    throttle.spend(100)
    assert time.waits[2:] == pytest.approx([0.1])


def test_capacity_that_was_not_used_is_not_saved(time: Time) -> None:
    throttle = Throttle(1000, lambda: time.now_s, time.wait)
    time.now_s += 60
    throttle.spend(500)
    assert time.waits == pytest.approx([0.5])


def test_short_waits_are_put_together(time: Time) -> None:
    throttle = Throttle(1000, lambda: time.now_s, time.wait)
    least = round(1000 * WAIT_MIN_S)
    for _ in range(3):
        throttle.spend(least // 2 - 1)
    assert time.waits == pytest.approx([3 * (least // 2 - 1) / 1000])
    time.waits.clear()
    Throttle(1024, lambda: time.now_s, time.wait).spend(1024)
    assert time.waits == [1.0]
