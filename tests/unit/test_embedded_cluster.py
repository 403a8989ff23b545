"""Several brokers of this process that form one cluster, with stock clients."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import flowstone
from flowstone.log.segments.checkpoints import RECOVERY_POINT_CHECKPOINT

VALUES = [b"%d" % number for number in range(200)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[flowstone.Cluster]:
    with flowstone.Cluster(brokers=3) as cluster:
        yield cluster


def produce(cluster: flowstone.Cluster, topic: str, values: list[bytes], bootstrap: str | None = None) -> None:
    failures: list[object] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap or cluster.bootstrap, "acks": "all", "enable.idempotence": True}
    )
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(30) == 0
    assert failures == []


def wait_until(holds: Callable[[], bool]) -> None:
    """Ten seconds at most."""
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to be")


def test_a_topic_has_three_replicas_that_are_in_sync(cluster: flowstone.Cluster) -> None:
    cluster.create_topic("replicated", partitions=3)
    produce(cluster, "replicated", VALUES)
    assert len(cluster.wait_for("replicated", len(VALUES))) == len(VALUES)
    assert [cluster.in_sync("replicated", index) for index in range(3)] == [{1, 2, 3}] * 3
    assert {cluster.leader("replicated", index) for index in range(3)} == {1, 2, 3}


def test_another_broker_leads_when_one_is_killed_and_nothing_is_lost(cluster: flowstone.Cluster) -> None:
    cluster.create_topic("survivor")
    produce(cluster, "survivor", VALUES)
    killed = cluster.leader("survivor")
    cluster.kill(killed)
    try:
        cluster.wait_for_leader("survivor", other_than=killed)
        produce(cluster, "survivor", VALUES)
        assert [record.value for record in cluster.wait_for("survivor", 400)] == VALUES * 2
    finally:
        cluster.restart(killed)
    cluster.wait_in_sync("survivor")


def test_the_clock_of_all_brokers_moves_at_once_and_a_dead_one_is_missed_without_waiting(
    cluster: flowstone.Cluster,
) -> None:
    cluster.create_topic("timed")
    killed = cluster.leader("timed")
    cluster.kill(killed)
    try:
        cluster.advance(minutes=5)
        cluster.wait_for_leader("timed", other_than=killed, timeout=1.5)
        produce(cluster, "timed", VALUES)
    finally:
        cluster.restart(killed)
    cluster.wait_in_sync("timed")


def test_a_leader_that_is_cut_off_is_replaced_and_drops_what_nobody_else_has(cluster: flowstone.Cluster) -> None:
    cluster.create_topic("split")
    produce(cluster, "split", VALUES)
    alone = cluster.leader("split")
    cluster.partition({alone}, {1, 2, 3} - {alone})
    lonely = Producer({"bootstrap.servers": cluster.brokers[alone].bootstrap, "acks": 1, "message.timeout.ms": 1500})
    lonely.produce("split", b"lost")
    lonely.poll(0.2)
    leader = cluster.wait_for_leader("split", other_than=alone)
    # A client that knows nobody but a broker that is cut off hears from it that it still leads, and gets no id.
    produce(cluster, "split", VALUES, cluster.brokers[leader].bootstrap)
    cluster.heal()
    lonely.flush(5)
    cluster.wait_in_sync("split")
    values = [record.value for record in cluster.records("split")]
    assert [value for value in values if value != b"lost"] == VALUES * 2


def test_a_paused_leader_is_replaced_and_follows_once_it_is_back(cluster: flowstone.Cluster) -> None:
    cluster.create_topic("paused")
    produce(cluster, "paused", VALUES)
    paused = cluster.leader("paused")
    cluster.pause(paused)
    try:
        cluster.wait_for_leader("paused", other_than=paused)
        produce(cluster, "paused", VALUES)
    finally:
        cluster.resume(paused)
    cluster.wait_in_sync("paused")
    assert [record.value for record in cluster.records("paused")] == VALUES * 2


def test_a_clean_restart_hands_leadership_over_first(cluster: flowstone.Cluster) -> None:
    cluster.create_topic("handed-over")
    leader = cluster.leader("handed-over")
    cluster.restart(leader)
    assert cluster.leader("handed-over") != leader
    cluster.wait_in_sync("handed-over")


def test_a_cluster_agrees_through_a_real_zookeeper() -> None:
    with flowstone.Cluster(brokers=3, zookeeper=True) as cluster:
        cluster.create_topic("kept", partitions=2)
        produce(cluster, "kept", VALUES)
        killed = cluster.leader("kept")
        cluster.kill(killed)
        cluster.wait_for_leader("kept", other_than=killed)
        produce(cluster, "kept", VALUES)
        cluster.restart(killed)
        cluster.wait_in_sync("kept")
        assert len(cluster.records("kept")) == 2 * len(VALUES)


def test_a_cluster_has_at_least_one_broker() -> None:
    with pytest.raises(ValueError, match="at least one broker, not 0"):
        flowstone.Cluster(brokers=0)


def test_a_groups_lag_is_known_where_its_coordinator_has_no_replica(cluster: flowstone.Cluster) -> None:
    cluster.create_topic("spread", partitions=3, replication_factor=1, configs={"min.insync.replicas": "1"})
    produce(cluster, "spread", VALUES)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("spread", index, 0) for index in range(3)], asynchronous=False)
    consumer.close()
    (group,) = [broker.groups()["reader"] for broker in cluster.brokers.values() if "reader" in broker.groups()]
    assert [each.partition for each in group.partitions] == [0, 1, 2]
    assert group.lag == len(VALUES)


def test_a_branch_of_a_replicated_topic_is_refused_in_a_sentence() -> None:
    with flowstone.Cluster(brokers=1, http=True) as cluster:
        cluster.create_topic("orders")
        assert cluster.brokers[1].http is not None
        identity = cluster.image.cluster_id
        asked = {"source": "orders", "target": "orders-dev", "cluster_id": identity, "time_ms": None, "groups": False}
        request = urllib.request.Request(
            f"{cluster.brokers[1].http}/branch",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert "a branch needs a single broker" in refused.value.read().decode()
        assert set(cluster.image.topics) == {"orders"}


def test_a_replica_whose_directory_is_gone_is_fetched_again_from_its_leader() -> None:
    with flowstone.Cluster(brokers=3, settings={"flush.messages": 1}) as cluster:
        cluster.create_topic("refetched")
        produce(cluster, "refetched", VALUES)
        cluster.wait_in_sync("refetched")
        follower = next(node_id for node_id in (1, 2, 3) if node_id != cluster.leader("refetched"))
        data = Path(cluster.brokers[follower].data_directory)
        cluster.advance(seconds=2)  # a checkpoint knows of the partition by then
        wait_until(lambda: "refetched" in (data / RECOVERY_POINT_CHECKPOINT).read_text())
        cluster.kill(follower)
        shutil.rmtree(data / "refetched-0")
        produce(cluster, "refetched", VALUES)
        cluster.restart(follower)
        cluster.wait_in_sync("refetched")
        assert len(cluster.wait_for("refetched", 400)) == 400
        assert (data / "refetched-0").exists()
