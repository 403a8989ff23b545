"""Brokers that agree through three ZooKeeper servers, of which one dies. Long: `make cluster` runs it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

import flowstone
from flowstone.embedded import Broker
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble

pytestmark = pytest.mark.skipif("FLOWSTONE_CLUSTER_LONG" not in os.environ, reason="long: FLOWSTONE_CLUSTER_LONG=1")

TIMEOUT_S = 60.0
# ZooKeeper's own election and a new connection to it take a second or two; records may wait for the lease as long.
SILENCE_S_MAX = 10.0
LOADED_S = 15.0


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path / "zookeeper") as ensemble:
        yield ensemble


@pytest.fixture
def brokers(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> Iterator[list[Broker]]:
    settings = {
        "zookeeper.connect": ensemble.address,
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                flowstone.Broker(data=str(tmp_path / str(node_id)), settings={**settings, "node.id": node_id})
            )
            for node_id in (1, 2, 3)
        ]


def longest_silence_s(brokers: list[Broker], during_s: float) -> float:
    """Of a producer that sends one record after the other, each once the last one is acknowledged by all replicas."""
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    failures: list[object] = []
    longest_s, began_s = 0.0, time.monotonic()
    while time.monotonic() - began_s < during_s:
        sent_s = time.monotonic()
        producer.produce("orders", b"tea", on_delivery=lambda error, _: failures.append(error) if error else None)
        assert producer.flush(TIMEOUT_S) == 0
        longest_s = max(longest_s, time.monotonic() - sent_s)
    assert failures == []
    return longest_s


@pytest.mark.timeout(300)
def test_a_cluster_serves_on_when_one_zookeeper_server_of_three_dies(
    ensemble: ZooKeeperEnsemble, brokers: list[Broker]
) -> None:
    brokers[0].create_topic("orders", partitions=3)
    longest_silence_s(brokers, 1.0)
    killed = ensemble.leader()
    killed.kill()
    silence_s = longest_silence_s(brokers, LOADED_S)
    print(f"longest silence {silence_s:.2f} s")
    assert silence_s < SILENCE_S_MAX
    brokers[1].create_topic("later", partitions=3)  # what is decided is written to the servers that are left
    killed.start()
    ensemble.leader().kill()
    assert longest_silence_s(brokers, LOADED_S) < SILENCE_S_MAX, "the one that was back counts again"
