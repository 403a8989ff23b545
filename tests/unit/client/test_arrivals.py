"""Waiting for a log to go on, with a running broker."""

from __future__ import annotations

import threading
import time

import flowstone
from flowstone.client import LATEST, Cluster, Producer
from flowstone.embedded import Broker
from flowstone.types import TopicPartition
from tests.unit.client.batches import batch_of
from tests.unit.client.conftest import Fill

LONG_S = 20.0
SHORT_S = 0.1


def timed_wait(cluster: Cluster, ends: dict[TopicPartition, int], timeout_s: float) -> float:
    began = time.monotonic()
    cluster.wait_for_records(ends, timeout_s)
    return time.monotonic() - began


def fill_apart(broker: Broker, partition: TopicPartition) -> None:
    """With a client of its own: one is for one thread."""
    with Cluster(broker.bootstrap, deadline_s=10) as cluster, Producer(cluster) as producer:
        producer.send(partition, batch_of(b"x"), 1)


def test_where_nothing_comes_the_wait_ends_with_its_time(cluster: Cluster, fill: Fill):
    partition = fill(2)
    waited_s = timed_wait(cluster, {partition: 20}, SHORT_S)
    assert SHORT_S * 0.9 < waited_s < LONG_S / 2


def test_where_there_is_no_partition_the_time_is_waited(cluster: Cluster):
    assert timed_wait(cluster, {}, SHORT_S) > SHORT_S * 0.9


def test_what_is_there_already_is_not_waited_for(cluster: Cluster, fill: Fill):
    partition = fill(2)
    assert timed_wait(cluster, {partition: 19}, LONG_S) < LONG_S / 2


def test_a_record_in_any_partition_ends_the_wait(broker: Broker, cluster: Cluster, topic: str):
    ends = {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}
    cluster.wait_for_records(ends, SHORT_S)  # connected: what follows is the wait alone
    writer = threading.Timer(SHORT_S, fill_apart, (broker, TopicPartition(topic, 1)))
    writer.start()
    assert timed_wait(cluster, ends, LONG_S) < LONG_S / 2
    writer.join()
    assert cluster.list_offsets(dict.fromkeys(ends, LATEST))[TopicPartition(topic, 1)].offset == 1


def test_waits_use_one_connection_again(cluster: Cluster, fill: Fill):
    partition = fill(1)
    cluster.wait_for_records({partition: 10}, SHORT_S)
    (idle,) = cluster.brokers._idle.values()
    first = list(idle)
    cluster.wait_for_records({partition: 0}, SHORT_S)
    assert idle == first
    assert len(first) == 1


def test_a_topic_that_is_not_there_is_not_waited_for(cluster: Cluster):
    assert timed_wait(cluster, {TopicPartition("nowhere", 0): 0}, LONG_S) < LONG_S / 2


def test_a_broker_that_is_gone_is_left_to_others_to_tell():
    with Broker() as broker:
        broker.create_topic("short-lived", partitions=1)
        cluster = Cluster(broker.bootstrap, deadline_s=10)
        cluster.wait_for_records({TopicPartition("short-lived", 0): 0}, SHORT_S)
    with cluster:
        assert timed_wait(cluster, {TopicPartition("short-lived", 0): 0}, LONG_S) < LONG_S / 2


def test_among_several_leaders_the_first_that_has_a_record_ends_the_wait():
    with flowstone.Cluster(brokers=3) as brokers:
        brokers.create_topic("spread", partitions=3)
        assert {brokers.leader("spread", index) for index in range(3)} == {1, 2, 3}
        ends = {TopicPartition("spread", index): 0 for index in range(3)}
        with Cluster(brokers.bootstrap, deadline_s=10) as cluster:
            cluster.wait_for_records(ends, SHORT_S)
            for index in range(3):  # the others' connections were given up each time
                with Producer(cluster) as producer:
                    producer.send(TopicPartition("spread", index), batch_of(b"x"), 1)
                assert timed_wait(cluster, ends, LONG_S) < LONG_S / 2
                ends[TopicPartition("spread", index)] = 1
            assert timed_wait(cluster, ends, SHORT_S) > SHORT_S * 0.9
