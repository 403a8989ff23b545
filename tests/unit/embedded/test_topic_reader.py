"""The records that `Broker` and `Cluster` show of transactions, by isolation level, and without end markers."""

from __future__ import annotations

from typing import Literal

import pytest

import flowstone
from flowstone.embedded import Broker, Record
from tests.support.transactional_records import ABORTED, COMMITTED, OPEN, TransactionalWriter

TIMEOUT_S = 20
TOPIC = "orders"


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_records_are_those_of_the_wanted_isolation_level(mode: Literal["thread", "process"]) -> None:
    with Broker(mode=mode) as broker:
        broker.create_topic(TOPIC)
        writer = TransactionalWriter(broker.bootstrap, TOPIC)
        writer.write(ABORTED, 2)
        writer.write(COMMITTED, 1, 1)
        holder = writer.write(OPEN, 1)
        writer.write_plain("plain")
        everything = ["aborted 1 0", "aborted 1 1", "committed 2 0", "committed 2 0", "open 3 0", "plain"]
        assert values(broker.records(TOPIC)) == values(broker.wait_for(TOPIC, 6)) == everything, "and no end markers"
        assert values(broker.records(TOPIC, read_committed=True)) == everything[2:4]
        with pytest.raises(TimeoutError, match="'orders' has 2"):
            broker.wait_for(TOPIC, 3, timeout=0.5, read_committed=True)
        holder.commit_transaction(TIMEOUT_S)
        assert values(broker.wait_for(TOPIC, 4, read_committed=True)) == everything[2:]


def test_a_cluster_shows_committed_records() -> None:
    with flowstone.Cluster(brokers=2) as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        writer = TransactionalWriter(cluster.bootstrap, TOPIC, 1)
        writer.write(ABORTED, 1)
        holder = writer.write(OPEN, 1)
        writer.write_plain("plain")
        assert len(cluster.records(TOPIC)) == 3
        assert cluster.records(TOPIC, read_committed=True) == []
        holder.commit_transaction(TIMEOUT_S)
        assert values(cluster.wait_for(TOPIC, 2, read_committed=True)) == ["open 2 0", "plain"]


def values(records: list[Record]) -> list[str]:
    return [(record.value or b"").decode() for record in records]
