"""Transactions that hang are logged once each, and counted while they last."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.broker.lag import late_transactions
from flowstone.broker.lag.late_transactions import LateTransactions
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic

ONE, TWO = 95_001, 95_002


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningApp]:
    """A broker for which every open transaction is late after a millisecond."""
    monkeypatch.setattr(late_transactions, "LATE_BUFFER_MS", -1)
    with RunningApp(str(tmp_path), transaction_max_timeout_ms="1", http_listener="127.0.0.1:0") as running:
        with running.client() as client:
            for name in ("a", "b", "c"):
                assert client.create_topic(name) == 0
        yield running


def check(app: RunningApp) -> LateTransactions:
    watch = app.app._late_transactions
    app.run(watch.check())
    return watch


def check_until(app: RunningApp, count: int) -> None:
    """Check until so many are late: they are young for a millisecond."""
    while check(app).count != count:
        pass


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == late_transactions.__name__]


def test_a_late_transaction_is_logged_once_with_what_to_do(app: RunningApp, caplog: pytest.LogCaptureFixture) -> None:
    topic = TransactionalTopic(app, "a")
    topic.write_plain(b"before")
    topic.write(ONE, b"v", epoch=3)
    topic.write(TWO, b"w")
    with caplog.at_level(logging.INFO):
        check_until(app, 1)
        check(app)
        (told,) = warnings(caplog)
        assert told.startswith(f"a-0: the transaction of producer {ONE} (epoch 3) from offset 1 on holds up ")
        assert told.endswith("`flowstone txn abort a/0@1`")
        topic.end(ONE, commits=False, epoch=3)
        check_until(app, 1)
        _, *later = warnings(caplog)
        assert f"the transaction of producer {ONE} in a-0 holds up nobody any more" in later
        assert any(f"producer {TWO} (epoch 0) from offset 2 on" in each for each in later)


def test_more_than_a_few_are_counted_and_logged_by_later_checks(
    app: RunningApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        TransactionalTopic(app, name).write(ONE, b"v")
    monkeypatch.setattr(late_transactions, "WARNINGS_MAX", 2)
    while app.app.services.clock.time_ms() <= max(
        app.call(lambda name=name: app.app.services.partitions.get(name, 0).log.producers.get(ONE).seen_ms + 1)
        for name in ("a", "b", "c")
    ):
        pass
    check(app)
    *logged, rest = warnings(caplog)
    assert [each.partition(":")[0] for each in logged] == ["a-0", "b-0"]
    assert rest == "1 more partitions have a hanging transaction"
    check(app)
    assert warnings(caplog)[3].startswith("c-0:")
    assert len(warnings(caplog)) == 4
    assert "flowstone_late_transaction_partitions 3\n" in app.get("/metrics")[1]


def test_a_transaction_that_is_not_late_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        assert client.create_topic("a") == 0
        TransactionalTopic(app, "a").write(ONE, b"v")
        assert check(app).count == 0
    assert warnings(caplog) == []
