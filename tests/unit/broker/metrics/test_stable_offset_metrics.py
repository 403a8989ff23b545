"""What `/metrics` says of open transactions."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic


def samples(app: RunningApp, name: str) -> dict[tuple[str, ...], float]:
    """The values of a family, by the values of its labels."""
    status, text = app.get("/metrics")
    assert status == 200
    return {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_open_transactions_are_counted_with_the_records_that_they_hold_back(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0") as app, app.client() as client:
        for name in ("plain", "orders"):
            assert client.create_topic(name) == 0
        TransactionalTopic(app, "plain").write_plain(b"v")
        topic = TransactionalTopic(app, "orders")
        topic.write_plain(b"before")
        topic.write(1, b"a")
        topic.write(2, b"b", b"c")
        told = [samples(app, f"flowstone_partition_{name}") for name in ("open_transactions", "last_stable_offset_lag")]
        assert told == [{(): 2}, {("orders", "0"): 3}]
        topic.end(1, commits=True)
        assert samples(app, "flowstone_partition_last_stable_offset_lag") == {("orders", "0"): 3}
        topic.end(2, commits=False)
        told = [samples(app, f"flowstone_partition_{name}") for name in ("open_transactions", "last_stable_offset_lag")]
        assert told == [{(): 0}, {("orders", "0"): 0}]
