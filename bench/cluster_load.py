"""One round on a cluster: a temporary topic of three replicas, written with acks=all and then read back.

`throughput` uses confluent-kafka with the same settings for both clusters. `synchronous` uses a raw connection to the
leader with one record in flight and no linger, so it measures leader, followers and kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench import client_workers, cluster_wire, wire
from bench.client_workers import ClientLoad
from bench.cluster_servers import BROKERS, Cluster
from bench.connection import Connection
from bench.latency import Appender
from bench.load import Figures, measure, percentile_ms
from bench.topics import BROKER_TROUBLE, POLL_INTERVAL_SECONDS, RoundFailed

ACKS_ALL = -1
VALUE_BYTES = 1_000
TOPIC_READY_TIMEOUT_SECONDS = 60


def throughput(cluster: Cluster, records: int) -> Figures:
    """Write records and read them all back; a missing record fails the round."""
    load = ClientLoad(VALUE_BYTES, "none", ACKS_ALL, records)
    with fresh_topic(cluster, spread(client_workers.PARTITIONS)) as topic:
        worker = partial(client_workers.work, cluster.address, load, topic)
        return measure(cluster, worker, 1, load.total_bytes)


def synchronous(cluster: Cluster, requests: int) -> Figures:
    latencies, clock = [], time.monotonic
    replicas = spread(1)
    with fresh_topic(cluster, replicas) as topic, Connection(cluster.addresses[replicas[0][0]]) as connection:
        appender = Appender(connection, topic, ACKS_ALL)
        cpu_before = cluster.cpu_seconds()
        for _ in range(requests):
            sent = clock()
            appender.send()
            appender.receive()
            latencies.append(clock() - sent)
        cpu = cluster.cpu_seconds() - cpu_before
    return {
        "p50_ms": percentile_ms(latencies, 0.50),
        "p99_ms": percentile_ms(latencies, 0.99),
        "cpu_us_per_record": 1e6 * cpu / requests,
    }


def spread(partitions: int) -> list[list[int]]:
    """Return the brokers of each partition, the leader first; leaders alternate."""
    return [[(first + at) % BROKERS + 1 for at in range(BROKERS)] for first in range(partitions)]


@contextmanager
def fresh_topic(cluster: Cluster, replicas: Sequence[Sequence[int]]) -> Iterator[str]:
    """Create a topic and delete it afterwards, including its files, so that the next round reuses their memory."""
    topic = f"bench{time.time_ns()}"
    try:
        create(cluster, topic, replicas)
        yield topic
        with Connection(cluster.addresses[1]) as admin:
            wire.topic_response("DeleteTopics", admin.ask(wire.delete_topic(topic)))
        cluster.wait_until_deleted(topic)
        os.sync()
    except BROKER_TROUBLE as error:
        raise RoundFailed(f"{type(error).__name__}: {error}") from error


def create(cluster: Cluster, topic: str, replicas: Sequence[Sequence[int]]) -> None:
    """Create a topic and wait until every leader serves its partitions with all replicas in sync."""
    with Connection(cluster.addresses[1]) as admin:
        wire.topic_response("CreateTopics", admin.ask(cluster_wire.create_topic(topic, replicas)))
    deadline = time.monotonic() + TOPIC_READY_TIMEOUT_SECONDS
    for node_id, address in cluster.addresses.items():
        led = [partition for partition, nodes in enumerate(replicas) if nodes[0] == node_id]
        with Connection(address) as connection:
            while led and not _serves(connection, topic, led):
                if time.monotonic() > deadline:
                    raise RoundFailed(f"{topic} is not served {TOPIC_READY_TIMEOUT_SECONDS} s after its creation")
                time.sleep(POLL_INTERVAL_SECONDS)


def _serves(connection: Connection, topic: str, led: Sequence[int]) -> bool:
    placed = cluster_wire.partitions(connection.ask(cluster_wire.metadata(topic)))
    if not placed or any(len(each.isr) < BROKERS for each in placed):
        return False
    return not any(wire.list_offsets_errors(connection.ask(wire.list_offsets(topic, led))))
