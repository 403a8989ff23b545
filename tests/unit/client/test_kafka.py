"""The same client against Apache Kafka: versions, producer ids, transactions and groups are a real peer's."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer as TransactionalProducer
from confluent_kafka.admin import AdminClient, NewTopic
from scripts.fetch_kafka import cache_folder

from bench.servers import Kafka
from flowstone.client import EARLIEST, LATEST, Cluster, Producer
from flowstone.types import TopicPartition
from tests.unit.client.batches import batch_of, records_of

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not cache_folder().is_dir(),
    reason="needs java and a fetched Kafka (scripts/fetch_kafka.py)",
)
ONE_NODE = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with Kafka(ONE_NODE) as server:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
        for future in admin.create_topics([NewTopic("orders", 2, 1), NewTopic("paid", 1, 1)]).values():
            future.result(30)
        yield server.address
        server.kill()  # a clean stop takes it ten seconds


def test_batches_written_to_kafka_are_read_back(kafka: str):
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    with Cluster(kafka) as cluster:
        assert cluster.topics(["orders"]) == {"orders": 2}
        with Producer(cluster) as producer:
            for number in range(100):
                producer.send(TopicPartition("orders", number % 2), batch_of(b"%d" % number, b"+"), 2)
            assert producer.flush() == {first: 100, second: 100}
        assert cluster.list_offsets({first: EARLIEST, second: LATEST})[second].offset == 100
        written = [record.value for record in records_of(cluster.fetch(first, 0, 100)) if record.value != b"+"]
        assert written == [b"%d" % number for number in range(0, 100, 2)]
        cluster.commit("readers", {first: 42}, "batch 3")
        assert cluster.committed("readers", [first, second]) == {first: 42}


def test_aborted_transactions_of_kafka_are_reported(kafka: str):
    paid = TopicPartition("paid", 0)
    config = {"bootstrap.servers": kafka, "transactional.id": "payments", "log_level": 0}
    writer = TransactionalProducer(config)
    writer.init_transactions(30)
    for value, end in ((b"kept", writer.commit_transaction), (b"dropped", writer.abort_transaction)):
        writer.begin_transaction()
        writer.produce("paid", value)
        writer.flush(30)
        end(30)
    with Cluster(kafka) as cluster:
        stable = 4  # two records, and a marker after each, which Kafka writes once it has answered
        while cluster.list_offsets({paid: LATEST}, read_committed=True)[paid].offset < stable:
            time.sleep(0.05)
        fetched = list(cluster.fetch(paid, 0, stable, read_committed=True))
        assert [(aborted.first_offset, len(fetched)) for each in fetched for aborted in each.aborted] == [(2, 1)]
        assert all(each.aborted == () for each in cluster.fetch(paid, 0, stable))


def test_a_missing_topic_is_created_by_kafka(kafka: str):
    with Cluster(kafka) as cluster:
        assert cluster.ensure_topics(["orders", "made-for-a-writer"]) == {"orders": 2, "made-for-a-writer": 1}
