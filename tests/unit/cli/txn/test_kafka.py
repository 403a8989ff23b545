"""The same commands against Apache Kafka: its coordinators and leaders answer the same requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from scripts.fetch_kafka import cache_folder

from bench.servers import Kafka
from tests.unit.cli.conftest import Call

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not cache_folder().is_dir(),
    reason="needs java and a fetched Kafka (scripts/fetch_kafka.py)",
)
START_S = 30
ONE_NODE = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}


@pytest.fixture
def broker() -> Iterator[Any]:
    with Kafka(ONE_NODE) as server:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(START_S)
        yield SimpleNamespace(bootstrap=server.address)
        server.kill()  # a clean stop takes it ten seconds


def test_the_commands_work_at_apache_kafka(call: Call, refused: Call, broker: Any) -> None:
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "tx", "log_level": 0}
    producer = ck.Producer(settings)
    producer.init_transactions(START_S)
    producer.begin_transaction()
    producer.produce("orders", b"v", partition=0)
    assert producer.flush(START_S) == 0
    listed = json.loads(call("txn", "list", "--pattern", "t.", "--open-for", 0, "--json"))
    assert (listed["transactional_id"], listed["state"]) == ("tx", "Ongoing")
    described = json.loads(call("txn", "describe", "tx", "--json"))
    assert described["partitions"] == [{"topic": "orders", "partition": 0, "first_offset": 0}]
    assert call("txn", "find-hanging", "--max-transaction-timeout", 0) == ""
    assert "its coordinator, broker 1, has it open" in refused("txn", "abort", "orders/0@0", "--yes")
    assert "aborted the transaction" in call("txn", "abort", "orders/0@0", "--force", "--yes")
    told = json.loads(call("txn", "producers", "orders/0", "--json"))
    assert (told["transactional_id"], told["transaction_start_offset"]) == ("tx", None)
    assert "--state Bad: the broker knows no such state" in refused("txn", "list", "--state", "Bad")
