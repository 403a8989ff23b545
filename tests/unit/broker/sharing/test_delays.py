"""The times before which share groups do not deliver a record."""

from __future__ import annotations

import pytest

from flowstone.broker.sharing.delays import DELIVER_AFTER, bounded, not_before_ms
from flowstone.coordinator.share.records import Delay


def test_a_delay_stored_by_a_leader_with_a_clock_ahead_ends_in_bounded_time() -> None:
    assert bounded([Delay(1, 500), Delay(2, 9_000_000)], 2_000) == (Delay(1, 500), Delay(2, 2_000))


@pytest.mark.parametrize(("value", "expected"), [(b"12", 12), (b"", 0), (b"-1", 0), (b"9" * 19, 0), (None, 0)])
def test_a_header_delays_only_with_a_number(value: bytes | None, expected: int) -> None:
    assert not_before_ms([("other", b"7"), (DELIVER_AFTER, value)]) == expected
