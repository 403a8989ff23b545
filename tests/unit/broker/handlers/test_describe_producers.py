"""DescribeProducers over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

import flowstone
from flowstone.broker.handlers import describe_producers
from flowstone.errors import ErrorCode
from flowstone.wire.messages import DescribeProducersRequest, DescribeProducersRequestTopic
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import COORDINATOR_EPOCH, TransactionalTopic
from tests.support.wire_client import Client, batch_of

TOPIC = "orders"
TIMEOUT_S = 20
ONE, TWO, THREE = 9001, 9002, 9003


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path)) as running:
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as connected:
        assert connected.create_topic(TOPIC, partitions=2) == 0
        yield connected


def describe(client: Client, *topics: tuple[str, list[int]]) -> list[Any]:
    """The answers for each partition."""
    asked = [DescribeProducersRequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics]
    response = client.ask(0, DescribeProducersRequest(topics=asked))
    return [partition for topic in response.topics for partition in topic.partitions]


def test_the_producers_of_a_partition_are_told_with_their_open_transactions(app: RunningApp, client: Client) -> None:
    topic = TransactionalTopic(app, TOPIC)
    topic.write(ONE, b"a", b"b", epoch=3)
    topic.write(TWO, b"c")
    topic.end(ONE, commits=True, epoch=3)
    topic.write(TWO, b"d")
    client.produce(TOPIC, batch_of(b"e", b"f", producer_id=THREE, producer_epoch=1, base_sequence=7))
    (partition,) = describe(client, (TOPIC, [0]))
    assert partition.error_code == ErrorCode.NONE
    told = {
        each.producer_id: (
            each.producer_epoch,
            each.last_sequence,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in partition.active_producers
    }
    assert told == {ONE: (3, 1, COORDINATOR_EPOCH, -1), TWO: (0, 1, -1, 2), THREE: (1, 8, -1, -1)}
    assert all(each.last_timestamp > 1_600_000_000_000 for each in partition.active_producers)


def test_a_partition_without_producers_has_none(client: Client) -> None:
    (partition,) = describe(client, (TOPIC, [1]))
    assert (partition.error_code, list(partition.active_producers)) == (ErrorCode.NONE, [])


def test_unknown_partitions_are_refused_beside_known_ones(client: Client) -> None:
    answers = describe(client, (TOPIC, [0, 7, 0]), ("nobody", [0]))
    assert [(each.partition_index, each.error_code) for each in answers] == [
        (0, ErrorCode.NONE),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_more_producers_than_one_answer_may_have_are_refused(
    app: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe_producers, "PRODUCERS_DESCRIBED_MAX", 1)
    topic = TransactionalTopic(app, TOPIC)
    topic.write(ONE, b"a")
    (only,) = describe(client, (TOPIC, [0]))
    assert only.error_code == ErrorCode.NONE
    topic.write(TWO, b"b")
    (refused,) = describe(client, (TOPIC, [0]))
    assert (refused.error_code, list(refused.active_producers)) == (ErrorCode.INVALID_REQUEST, [])
    assert "ask for fewer partitions" in refused.error_message


def test_a_follower_tells_what_its_own_log_says() -> None:
    with flowstone.Cluster(2) as cluster:
        cluster.create_topic(TOPIC, partitions=1, replication_factor=2)
        producer = ck.Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "tx", "linger.ms": 0})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce(TOPIC, b"open", partition=0)
        assert producer.flush(TIMEOUT_S) == 0  # acks=all: both replicas have it
        told = []
        for broker in cluster.brokers.values():
            host, _, port = broker.bootstrap.rpartition(":")
            with Client((host, int(port))) as client:
                (answer,) = describe(client, (TOPIC, [0]))
            assert answer.error_code == ErrorCode.NONE
            told.append([(each.producer_id, each.current_txn_start_offset) for each in answer.active_producers])
        assert told[0] == told[1]
        assert told[0][0][1] == 0
        producer.abort_transaction(TIMEOUT_S)
