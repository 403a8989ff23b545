"""What operators ask of a cluster, with the brokers of this process and one clock for all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import flowstone
from flowstone.cli.cluster.moves import move, throttle, unthrottle
from flowstone.cli.cluster.state import ClusterReader
from flowstone.types import TopicPartition as Partition

TIMEOUT_S = 30.0
BATCH_BYTES, BATCHES = 100_000, 5
STEP_S, POLL_S = 0.5, 0.02


@pytest.fixture(scope="module")
def cluster() -> Iterator[flowstone.Cluster]:
    """A follower that catches up gets one batch at a time."""
    with flowstone.Cluster(3, settings={"replica.fetch.max.bytes": BATCH_BYTES // 2}) as cluster:
        yield cluster


def produce(cluster: flowstone.Cluster, topic: str) -> None:
    """So many batches of one record."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "compression.type": "none"})
    for _ in range(BATCHES):
        producer.produce(topic, bytes(BATCH_BYTES))
        assert producer.flush(TIMEOUT_S) == 0


def first_offset(cluster: flowstone.Cluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "watermarks"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)[0])
    finally:
        consumer.close()


def test_deleted_records_are_gone_with_every_replica_once_it_is_answered(cluster: flowstone.Cluster) -> None:
    cluster.create_topic("deleted")
    produce(cluster, "deleted")
    leader = cluster.leader("deleted")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (answer,) = admin.delete_records([TopicPartition("deleted", 0, BATCHES - 1)]).values()
    assert answer.result(TIMEOUT_S).low_watermark == BATCHES - 1
    cluster.kill(leader)
    try:
        cluster.advance(minutes=1)
        cluster.wait_for_leader("deleted", other_than=leader)
        assert first_offset(cluster, "deleted") == BATCHES - 1
    finally:
        cluster.restart(leader)
    cluster.wait_in_sync("deleted")


def test_a_throttle_slows_a_move_to_its_rate_and_without_it_the_move_ends(cluster: flowstone.Cluster) -> None:
    cluster.create_topic("moved", replication_factor=1, configs={"min.insync.replicas": "1"})
    produce(cluster, "moved")
    home = cluster.leader("moved")
    first, second = (node_id for node_id in cluster.brokers if node_id != home)
    bytes_per_s = BATCH_BYTES // 2
    with ClusterReader(cluster.bootstrap) as reader:
        throttle(reader, bytes_per_s)
        began_s, advanced_s = time.monotonic(), 0.0
        move(reader, {Partition("moved", 0): (home, first)})
        while first not in cluster.in_sync("moved"):
            assert time.monotonic() - began_s < TIMEOUT_S
            cluster.advance(seconds=STEP_S)
            advanced_s += STEP_S
            time.sleep(POLL_S)
        took_s = advanced_s + time.monotonic() - began_s
        assert took_s >= (BATCHES - 1) * BATCH_BYTES / bytes_per_s
        unthrottle(reader)
        move(reader, {Partition("moved", 0): (home, second)})
    cluster.wait_in_sync("moved")
    assert cluster.in_sync("moved") == {home, second}
