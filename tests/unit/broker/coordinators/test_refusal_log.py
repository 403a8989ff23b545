"""Warnings about refused requests."""

from __future__ import annotations

import pytest

from flowstone.broker.coordinators.refusal_log import REFUSAL_LOG_INTERVAL_S, RefusalLog
from flowstone.config import MIB
from flowstone.memory_budget import MemoryBudget


def test_refusals_are_logged_once_a_minute_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    log = RefusalLog("a pet was refused: all pets", "pets.max.bytes", "feed fewer", lambda: now_s)
    memory = MemoryBudget(3 * MIB)
    for now_s in (0.0, 1.0, REFUSAL_LOG_INTERVAL_S - 1, REFUSAL_LOG_INTERVAL_S):  # noqa: B007
        log.refused(memory)
    expected = "a pet was refused: all pets take 0 MiB of memory and pets.max.bytes is 3 MiB; raise it, or feed fewer"
    assert [record.getMessage() for record in caplog.records] == [expected] * 2
