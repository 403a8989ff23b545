"""A checker that cannot fail is worthless: bugs in transactions, planted in the brokers of a cluster, must be caught.

Two of them in `make test`, all with FLOWSTONE_CHAOS_PLANTED=all. No broker is broken otherwise; tellers are replaced
as ever.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from .bank import Bank
from .cluster import ChaosCluster
from .history import Journal
from .network import Loopback
from .sabotaged_transactions import BUGS
from .tellers import Staff

SABOTAGED_UP = Path(__file__).with_name("sabotaged_transactions.py")
EXPECTED = {
    "tear": {"torn transaction"},
    "show_aborted": {"aborted read", "taken back", "wrong isolation"},
    "show_open": {"aborted read", "taken back"},
    "abort_some": {"lost transaction"},
    "forget_offsets": {"order handled twice"},
    "never_time_out": {"hanging transaction"},
}
LONG = ("show_open", "abort_some", "forget_offsets", "never_time_out")
TRANSACTIONS, TRAFFIC_S_MAX = 60, 90.0
SETTINGS = {"zookeeper.session.timeout.ms": "4000"}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("bug", BUGS)
def test_the_checker_catches_brokers_that_break_transactions(tmp_path: Path, bug: str) -> None:
    if bug in LONG and os.environ.get("FLOWSTONE_CHAOS_PLANTED") != "all":
        pytest.skip("FLOWSTONE_CHAOS_PLANTED=all")
    program = (sys.executable, str(SABOTAGED_UP), bug)
    with (
        ChaosCluster(tmp_path, Loopback(), settings=SETTINGS, program=program) as cluster,
        Journal(tmp_path / "history.jsonl") as journal,
    ):
        bank = Bank(cluster, journal, tmp_path / "tellers.log", Staff(fixed=1, tellers=4))
        try:
            started_s = time.monotonic()
            bank.check_going(started_s, "the start")
            enough = TRANSACTIONS if bug != "never_time_out" else sys.maxsize
            while not bank.anomalies and time.monotonic() < started_s + TRAFFIC_S_MAX:
                if len(bank.claims.committed) + len(bank.claims.aborted) > enough:
                    break
                time.sleep(0.1)
            if not bank.anomalies:
                bank.finish()
        finally:
            bank.close()
    caught = {each.kind for each in bank.anomalies}
    assert caught & EXPECTED[bug], bank.anomalies[:5]
