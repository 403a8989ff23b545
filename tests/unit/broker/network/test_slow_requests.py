"""When a request counts as one that arrives too slowly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flowstone.broker.network.connection import Connection


def is_slow(filled_bytes: int, now_s: float, *, frame: object = b"", started_s: float | None = 100.0) -> bool:
    """At a thousand bytes a second, of a request that began at second 100."""
    connection: Any = SimpleNamespace(_frame=frame, frame_started=started_s, _frame_filled=filled_bytes)
    return Connection.is_slower_than(connection, 1000, now_s)


@pytest.mark.parametrize(
    ("filled_bytes", "now_s", "slow"),
    [
        (0, 100.0, False),
        (0, 101.0, False),
        (0, 101.1, True),
        (2000, 103.0, False),
        (2000, 103.1, True),
        (1999, 103.0, True),
        (10**6, 200.0, False),
    ],
)
def test_a_request_has_a_second_and_then_its_rate(filled_bytes: int, now_s: float, slow: bool) -> None:
    assert is_slow(filled_bytes, now_s) is slow


def test_a_connection_that_receives_no_large_request_is_not_slow() -> None:
    assert not is_slow(0, 1e9, frame=None)
    assert not is_slow(0, 1e9, started_s=None)
