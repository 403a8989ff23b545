"""What `/metrics` says of the transactions that a broker coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.broker.metrics import stable_offset_metrics
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic
from tests.support.transactions import TransactionClient, eventually
from tests.support.wire_client import Client
from tests.unit.broker.metrics.test_stable_offset_metrics import samples

SCAN_MS = "50"
OPEN = "flowstone_transactions_open"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    settings = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": SCAN_MS}
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0", **settings) as running:
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as connected:
        assert connected.create_topic("orders") == 0
        yield connected


def value(app: RunningApp, name: str) -> float:
    return samples(app, name)[()]


def test_transactions_are_counted_while_open_and_when_ended(app: RunningApp, client: Client) -> None:
    assert samples(app, OPEN) == {("ongoing",): 0, ("ending",): 0}
    assert value(app, "flowstone_transaction_oldest_seconds") == 0
    one, two = TransactionClient(client, "one"), TransactionClient(client, "two")
    for each in (one, two):
        each.begin()
        assert each.add(("orders", [0])) == [0]
    assert samples(app, OPEN)["ongoing",] == 2
    eventually(lambda: value(app, "flowstone_transaction_oldest_seconds") > 0)
    assert value(app, "flowstone_transaction_memory_bytes") > 0
    one.end(commit=True)
    two.end(commit=False)
    eventually(lambda: samples(app, OPEN) == {("ongoing",): 0, ("ending",): 0})
    assert value(app, "flowstone_transactions_committed_total") == 1
    assert value(app, "flowstone_transactions_aborted_total") == 1
    assert value(app, "flowstone_transactions_timed_out_total") == 0
    two.begin()
    two.end(commit=False)  # nothing to abort
    assert value(app, "flowstone_transactions_aborted_total") == 1


def test_a_transaction_that_times_out_is_counted_as_such(app: RunningApp, client: Client) -> None:
    slow = TransactionClient(client, "slow")
    slow.find_coordinator()
    eventually(lambda: slow.init(timeout_ms=100).error_code == 0)
    answer = slow.init(timeout_ms=100)
    slow.producer_id, slow.producer_epoch = answer.producer_id, answer.producer_epoch
    assert slow.add(("orders", [0])) == [0]
    eventually(lambda: value(app, "flowstone_transactions_timed_out_total") == 1)
    assert value(app, "flowstone_transactions_aborted_total") == 1


def test_the_partitions_that_are_held_back_most_have_labels(
    app: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stable_offset_metrics, "PARTITION_LABELS_MAX", 1)
    assert client.create_topic("held") == 0
    free, held = TransactionalTopic(app, "orders"), TransactionalTopic(app, "held")
    free.write(1, b"a")
    free.end(1, commits=True)
    held.write(1, b"a", b"b")
    assert samples(app, "flowstone_partition_last_stable_offset_lag") == {("held", "0"): 2}
