from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest

from flowstone.cli.common.json_values import plain_value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (1.5, 1.5),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00+00:00"),
        (datetime(2026, 1, 2, 3), "2026-01-02T03:00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4), "03:04:00"),
        (timedelta(minutes=1), 60.0),
        (Decimal("1.20"), "1.20"),
        (b"\x00\xff", "AP8="),
        ({1: [b"a", (None,)]}, {"1": ["YQ==", [None]]}),
        ("text", "text"),
    ],
)
def test_what_json_lacks_becomes_text_a_number_or_null(value: Any, plain: Any) -> None:
    assert plain_value(value) == plain


def test_times_without_a_zone_may_be_taken_for_utc() -> None:
    assert plain_value([datetime(2026, 1, 2)], assume_utc=True) == ["2026-01-02T00:00:00+00:00"]
