"""Token buckets in simulated time: a client that waits as told is as fast as its quota, whatever it sends at once."""

from __future__ import annotations

import pytest

from flowstone.broker.quotas.token_bucket import TokenBucket


@pytest.mark.parametrize("burst_s", [1, 10, 50])
@pytest.mark.parametrize("size", [100, 1_000, 30_000])
def test_a_client_that_waits_as_told_has_its_quota(burst_s: float, size: int) -> None:
    quota, now, total = 10_000.0, 0.0, 0
    burst = quota * burst_s
    bucket = TokenBucket(burst, now)
    while now < 300:
        bucket.take(size, quota, burst, now, may_owe=True)
        total += size
        now += 0.002 + bucket.delay_s(quota, burst, now)
    assert total - burst == pytest.approx(quota * now, rel=0.05)


def test_the_delay_after_a_burst_is_that_of_kafka() -> None:
    window_s, quota, sent = 10.0, 100.0, 2_300
    bucket = TokenBucket(quota * window_s, 0)
    bucket.take(sent, quota, quota * window_s, 0)
    rate = sent / window_s
    assert bucket.delay_s(quota, quota * window_s, 0) == pytest.approx((rate - quota) / quota * window_s)


def test_a_slow_client_is_not_delayed() -> None:
    bucket = TokenBucket(1_000, 0)
    for second in range(100):
        bucket.take(99, 100, 1_000, second, may_owe=True)
        assert bucket.delay_s(100, 1_000, second) == 0


def test_tokens_are_refilled_at_the_rate_and_owed_after_a_large_request() -> None:
    bucket = TokenBucket(10, 0)
    assert bucket.take(30, 2, 10, 0)
    assert bucket.delay_s(2, 10, 0) == 10
    assert not bucket.take(1, 2, 10, 9)
    assert bucket.take(1, 2, 10, 9, may_owe=True)
    assert not bucket.take(1, 2, 10, 10)
    assert bucket.take(3, 2, 10, 10.5)
    assert not bucket.take(1, 2, 10, 11)
    assert bucket.take(10, 2, 10, 1000)
    assert bucket.delay_s(2, 10, 1000) == 0
