from __future__ import annotations

import pytest

from flowstone.broker.disks.append_rates import AVERAGE_S, AppendRate, AppendRates
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.partition import ACKS_ALL
from tests.support.partitions import IN_PAGE_CACHE, a_batch, a_partition


def test_a_rate_follows_what_is_appended() -> None:
    clock = SimulatedClock()
    rate = AppendRate(clock.monotonic())
    clock.advance(5)
    rate.sample(5000, clock.monotonic())
    assert rate.bytes_per_s == 1000
    for _ in range(60):
        clock.advance(5)
        rate.sample(10_000, clock.monotonic())
    assert rate.bytes_per_s == pytest.approx(2000, rel=0.01)


def test_a_rate_forgets_what_is_long_ago() -> None:
    rate = AppendRate(0)
    rate.sample(1000, 1)
    rate.sample(0, 1 + AVERAGE_S)
    assert rate.bytes_per_s == pytest.approx(1000 / 2.718, rel=0.01)


def test_how_often_a_rate_is_sampled_does_not_change_it() -> None:
    often, seldom = AppendRate(0), AppendRate(0)
    for rate in (often, seldom):
        rate.sample(1000, 1)
    for second in range(2, 31):
        often.sample(500, second)
    seldom.sample(500 * 29, 30)
    assert often.bytes_per_s == pytest.approx(seldom.bytes_per_s)


def test_appended_bytes_are_counted_over_segments_and_whatever_was_deleted() -> None:
    partition, _flusher = a_partition(IN_PAGE_CACHE)
    log = partition.log
    partition.append(a_batch(3), ACKS_ALL)
    since = log.end
    partition.append(a_batch(2), ACKS_ALL)
    log.roll()
    partition.append(a_batch(5), ACKS_ALL)
    assert log.segments.bytes_between(since, log.end) == len(a_batch(2)) + len(a_batch(5))
    assert log.segments.bytes_between(log.end, since) == 0  # as after a truncation
    log.advance_log_start(5)
    log.drop_segments()
    assert log.segments.bytes_between(since, log.end) == len(a_batch(5))


def test_rates_are_kept_for_as_long_as_they_are_asked_for() -> None:
    log = a_partition(IN_PAGE_CACHE)[0].log
    rates = AppendRates()
    assert rates.of(log, 0) == 0
    log.append(a_batch(3), leader_epoch=0)
    assert rates.of(log, 10) == len(a_batch(3)) / 10
    rates.forget_unasked()
    assert rates.of(log, 10) == len(a_batch(3)) / 10
    for _ in range(2):
        rates.forget_unasked()
    assert rates.of(log, 10) == 0
