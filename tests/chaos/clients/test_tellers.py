"""Python clients in transactions while leaders and coordinators are killed: a slice of `run`, which has all clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from .run import CLIENTS, survive

FAULTS = 2


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["kafka-python", "aiokafka"])
def test_a_sum_never_changes_while_brokers_and_tellers_are_killed(tmp_path: Path, name: str) -> None:
    (tmp_path / "program").mkdir()
    outcome = survive(CLIENTS[name](tmp_path / "program"), tmp_path, FAULTS)
    assert not outcome.anomalies, outcome.anomalies[:5]
    assert int(str(outcome.figures["committed"])) > 0
    print(outcome.figures)
