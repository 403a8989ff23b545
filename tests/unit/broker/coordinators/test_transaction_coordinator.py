"""Transactions in a cluster: coordinator and partition leaders are different brokers, some of which die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from flowstone.embedded.cluster import Cluster
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.transactions import BUSY, WAIT_S, TransactionClient, eventually, markers
from tests.support.wire_client import Client, batch_of

TOPIC = "t"
NONE = ErrorCode.NONE
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.min.isr": 1,
    "offsets.topic.num.partitions": 1,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three brokers; each leads one of three partitions that nobody else has."""
    with Cluster(settings=SETTINGS) as running:
        running.create_topic(TOPIC, partitions=3, replication_factor=1)
        yield running


@pytest.fixture
def clients(cluster: Cluster) -> Iterator[dict[int, Client]]:
    """A connection to each broker that is alive."""
    with ExitStack() as open_clients:
        yield {node_id: open_clients.enter_context(connect(cluster, node_id)) for node_id in cluster.brokers}


def connect(cluster: Cluster, node_id: int) -> Client:
    host, _, port = cluster.brokers[node_id].bootstrap.rpartition(":")
    return Client((host, int(port)))


def coordinator_of(clients: dict[int, Client]) -> int:
    """The node id of the broker that has the only partition of `__transaction_state`."""
    found = -1

    def is_found() -> bool:
        nonlocal found
        answer = TransactionClient(next(iter(clients.values()))).find_coordinator()
        found = answer.node_id
        return bool(answer.error_code == NONE and found in clients)

    eventually(is_found)
    return found


def begin(clients: dict[int, Client], transactional_id: str) -> TransactionClient:
    producer = TransactionClient(clients[coordinator_of(clients)], transactional_id)
    producer.begin()
    return producer


def partition_led_by(cluster: Cluster, node_id: int) -> int:
    return next(index for index in range(3) if cluster.leader(TOPIC, index) == node_id)


def test_leaders_on_all_brokers_write_the_markers(
    cluster: Cluster, clients: dict[int, Client], request: pytest.FixtureRequest
) -> None:
    producer = begin(clients, request.node.name)
    assert producer.add((TOPIC, [0, 1, 2])) == [NONE] * 3
    assert producer.end(commit=True, version=4).error_code == NONE
    producer.wait_for_state("CompleteCommit")
    for index in range(3):
        assert (*producer.pair, True) in markers(clients[cluster.leader(TOPIC, index)], TOPIC, index)


@pytest.mark.parametrize("version", [11, 12])
def test_leaders_ask_the_coordinator_on_another_broker(
    cluster: Cluster, clients: dict[int, Client], version: int, request: pytest.FixtureRequest
) -> None:
    producer = begin(clients, request.node.name)
    other = next(node_id for node_id in clients if node_id != coordinator_of(clients))
    index = partition_led_by(cluster, other)
    batch = batch_of(
        b"v",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    data = m.ProduceRequestTopic(name=TOPIC, partition_data=[m.ProduceRequestPartition(index=index, records=batch)])
    produce = m.ProduceRequest(
        transactional_id=producer.transactional_id, acks=-1, timeout_ms=int(WAIT_S * 1000), topic_data=[data]
    )
    (answer,) = clients[other].ask(version, produce).responses[0].partition_responses
    assert answer.error_code == (NONE if version == 12 else ErrorCode.TRANSACTION_ABORTABLE)
    assert producer.describe().transaction_state == ("Ongoing" if version == 12 else "Empty")


def test_a_new_coordinator_sends_the_markers_that_the_former_could_not() -> None:
    with Cluster(settings=SETTINGS) as cluster, ExitStack() as stack:
        cluster.create_topic(TOPIC, partitions=3, replication_factor=1)
        clients = {node_id: stack.enter_context(connect(cluster, node_id)) for node_id in cluster.brokers}
        producer = begin(clients, "tx")
        former = coordinator_of(clients)
        away, successor = (node_id for node_id in clients if node_id != former)
        index = partition_led_by(cluster, away)
        assert producer.add((TOPIC, [index])) == [NONE]
        cluster.wait_in_sync("__transaction_state")
        cluster.kill(away)
        assert producer.end(commit=True, version=4).error_code == NONE
        assert producer.describe().transaction_state == "PrepareCommit"
        cluster.kill(former)
        cluster.wait_for_leader("__transaction_state", other_than=former)
        after = TransactionClient(clients[successor])
        eventually(lambda: after.describe().transaction_state == "PrepareCommit")
        assert after.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        cluster.restart(away)
        after.wait_for_state("CompleteCommit")
        eventually(lambda: after.init().error_code not in BUSY)
        with connect(cluster, away) as leader:
            assert markers(leader, TOPIC, index) == [(*producer.pair, True)]
