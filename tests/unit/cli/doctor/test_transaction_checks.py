"""What `flowstone doctor` finds about open transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowstone.cli.doctor import transaction_checks
from flowstone.cli.doctor.checks import Status
from flowstone.cli.doctor.transaction_checks import HOLDS_UP_S, check_transactions, judge
from flowstone.cli.txn.facts import ONGOING, DescribedTransaction, OpenTransaction, PartitionProducer
from flowstone.cli.txn.hanging import Candidate
from flowstone.types import TopicPartition
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic

WHERE = TopicPartition("orders", 0)
NOW_MS = 10_000_000
LIMIT_S = 900.0


def candidate(silent_s: float, open_s: float | None) -> Candidate:
    """An open transaction whose coordinator has it open for so long, or does not know it."""
    producer = PartitionProducer(7, 0, -1, 0, NOW_MS - round(silent_s * 1000), 12)
    found = OpenTransaction(WHERE, producer, 12)
    if open_s is None:
        return Candidate(found, None, None)
    start_ms = NOW_MS - round(open_s * 1000)
    return Candidate(found, "tx", DescribedTransaction("tx", 1, 7, 0, ONGOING, 60_000, start_ms, (WHERE,)))


def test_young_transactions_are_good() -> None:
    finding = judge([candidate(1, 5), candidate(LIMIT_S, None)], LIMIT_S, NOW_MS)
    assert (finding.status, finding.finding) == (Status.GOOD, "2 open ones, none for longer than 60 s")


def test_an_old_transaction_is_a_warning_with_its_name() -> None:
    finding = judge([candidate(1, 5), candidate(2, HOLDS_UP_S + 3)], LIMIT_S, NOW_MS)
    assert finding.status is Status.WARNING
    assert finding.finding == "tx is open for 63.0 s; read_committed consumers wait at orders/0@12"
    assert "flowstone txn describe tx" in finding.advice


def test_a_transaction_of_no_coordinator_is_bad() -> None:
    finding = judge([candidate(2, HOLDS_UP_S + 3), candidate(LIMIT_S + 1, None)], LIMIT_S, NOW_MS)
    assert finding.status is Status.BAD
    assert finding.finding == "1 transaction of no coordinator; read_committed consumers wait at orders/0@12"


def test_the_transactions_of_a_broker_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningApp(str(tmp_path), transaction_max_timeout_ms="1") as app, app.client() as client:
        bootstrap = "{}:{}".format(*app.app.addresses["PLAINTEXT"])
        assert client.create_topic("orders") == 0
        assert check_transactions(bootstrap).status is Status.GOOD
        topic = TransactionalTopic(app, "orders")
        topic.write(94_001, b"hanging")
        topic.write_plain(b"plain")
        while (finding := check_transactions(bootstrap)).status is Status.GOOD:
            pass  # it is young for a millisecond
        assert finding.status is Status.BAD
        assert finding.finding.endswith("wait at orders/0@0")
        monkeypatch.setattr(transaction_checks, "PARTITIONS_MAX", 0)
        assert "not checked" in check_transactions(bootstrap).finding
    assert check_transactions(bootstrap).status is Status.WARNING
