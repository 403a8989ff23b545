"""Processes of tellers are replaced all the time, but for when they are let be."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos import tellers
from tests.chaos.history import Journal
from tests.chaos.tellers import Desk, Tellers, Till
from tests.chaos.transfers import Claims

WAIT_S, QUIET_S, POLL_S = 20.0, 0.5, 0.01
SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tellers]:
    monkeypatch.setattr(tellers, "REPLACE_PAUSE_S", (0.01, 0.02))
    monkeypatch.setattr(tellers, "STOPPED_S", (0.05, 0.1))
    till = Till("nowhere", "accounts", 1, tmp_path / "log")
    desks = [Desk("group", "orders", "fixed", number, 1, SLEEPER) for number in range(2)]
    with Journal(tmp_path / "history.jsonl") as journal:
        running = Tellers(till, desks, Claims(), journal)
        try:
            yield running
        finally:
            running.close()


def changes(running: Tellers) -> int:
    return running.kills + running.zombies


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)


def test_nobody_is_replaced_while_tellers_are_let_be(replaced: Tellers) -> None:
    wait_until(lambda: replaced.kills > 0 and replaced.zombies > 0)
    replaced.let_be()
    time.sleep(QUIET_S)  # the one that was under way
    before = changes(replaced)
    time.sleep(QUIET_S)
    assert changes(replaced) == before
    replaced.go_on()
    wait_until(lambda: changes(replaced) > before)
