"""A cluster's brokers as `/metrics` shows them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

import flowstone
from flowstone.broker.clustering.membership import LEASE_SHARE
from flowstone.embedded.cluster import SESSION_TIMEOUT_S
from tests.support.running_app import get

PARTITIONS = 6
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[flowstone.Cluster]:
    settings = {"auto.leader.rebalance.enable": False, "offsets.topic.num.partitions": 1}
    with flowstone.Cluster(3, http=True, settings=settings) as cluster:
        cluster.create_topic("orders", partitions=PARTITIONS)
        cluster.wait_in_sync("orders")
        yield cluster


def scrape(broker: flowstone.Broker) -> dict[str, float]:
    """The samples that have no labels."""
    assert broker.http is not None
    status, text = get(broker.http.removeprefix("http://"), "/metrics")
    assert status == 200
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


def total(cluster: flowstone.Cluster, name: str, dead: int | None = None) -> float:
    """Over all brokers that are alive."""
    alive = [broker for node_id, broker in cluster.brokers.items() if node_id != dead]
    return sum(scrape(broker)[f"flowstone_{name}"] for broker in alive)


def wait_until(cluster: flowstone.Cluster, name: str, value: float, dead: int | None = None) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while (found := total(cluster, name, dead)) != value:
        assert time.monotonic() < deadline, (name, found)
        time.sleep(0.05)


def test_a_healthy_cluster_has_one_controller_and_every_partition_one_leader(cluster: flowstone.Cluster) -> None:
    assert total(cluster, "controller") == 1
    assert total(cluster, "leader_partitions") == PARTITIONS
    assert total(cluster, "under_replicated_partitions") == 0
    assert total(cluster, "under_min_isr_partitions") == 0
    assert total(cluster, "offline_partitions") == 0


def test_a_lease_is_shorter_than_the_session(cluster: flowstone.Cluster) -> None:
    left = [scrape(broker)["flowstone_lease_seconds_left"] for broker in cluster.brokers.values()]
    assert all(0 < each <= LEASE_SHARE * SESSION_TIMEOUT_S for each in left)


def test_a_lost_broker_shows_as_elections_and_missing_replicas_until_it_is_back(cluster: flowstone.Cluster) -> None:
    led = scrape(cluster.brokers[3])["flowstone_leader_partitions"]
    before = total(cluster, "leader_elections_total", dead=3)
    cluster.kill(3)
    wait_until(cluster, "under_replicated_partitions", PARTITIONS, dead=3)
    assert total(cluster, "leader_partitions", dead=3) == PARTITIONS
    assert total(cluster, "leader_elections_total", dead=3) - before == led
    assert total(cluster, "isr_shrinks_total", dead=3) >= PARTITIONS
    cluster.restart(3)
    wait_until(cluster, "under_replicated_partitions", 0)
    assert total(cluster, "isr_expands_total") >= PARTITIONS
    assert total(cluster, "offline_partitions") == 0


def test_partitions_that_only_dead_brokers_have_are_offline_once(cluster: flowstone.Cluster) -> None:
    cluster.create_topic("alone", partitions=3, replication_factor=1)
    lost = cluster.leader("alone")
    cluster.kill(lost)
    wait_until(cluster, "offline_partitions", 1, dead=lost)
    cluster.restart(lost)
    wait_until(cluster, "offline_partitions", 0)
    cluster.wait_in_sync("orders")
