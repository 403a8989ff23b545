"""A cluster of which one broker's disk is full: the others lead, nobody waits for it, and it comes back by itself."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import flowstone
from flowstone.config import GIB
from flowstone.ports.system_files import SystemFile, SystemFiles
from flowstone.types import Bytes

TOPIC = "orders"
PARTITIONS = 3
TIMEOUT_S = 20.0
# A gap in the acknowledgements that clients notice is longer than this.
GAP_S = 8.0


class Disks:
    """What the brokers' disks say: which data directory has no space left, and in which way."""

    def __init__(self) -> None:
        self.low = self.full = ""  # below the floor; no byte more

    def free_bytes(self, path: str) -> tuple[int, int]:
        return (0 if self.low and path.startswith(self.low) else 50 * GIB), 100 * GIB

    def check(self, path: str) -> None:
        if self.full and path.startswith(self.full):
            raise OSError(errno.ENOSPC, "No space left on device", path)


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    disks = Disks()
    write, replace = SystemFile.write, SystemFiles.replace

    def write_if_space(file: SystemFile, position: int, buffers: list[Bytes]) -> int:
        disks.check(file.path)
        return write(file, position, buffers)

    def replace_if_space(files: SystemFiles, path: str, data: bytes) -> None:
        if data:
            disks.check(path)
        replace(files, path, data)

    monkeypatch.setattr(SystemFiles, "free_bytes", lambda _, path: disks.free_bytes(path))
    monkeypatch.setattr(SystemFiles, "replace", replace_if_space)
    monkeypatch.setattr(SystemFile, "write", write_if_space)
    return disks


@pytest.fixture
def cluster(disks: Disks) -> Iterator[flowstone.Cluster]:
    with flowstone.Cluster(3) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        produce(cluster)
        yield cluster


def produce(cluster: flowstone.Cluster, count: int = 30) -> float:
    """Every record is acknowledged by all in-sync replicas; the longest wait between two acknowledgements."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0})
    gap_s, last_s = 0.0, time.monotonic()
    for number in range(count):
        failures: list[Any] = []
        producer.produce(
            TOPIC,
            b"%d" % number,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _, f=failures: f.append(error),
        )
        assert producer.flush(TIMEOUT_S) == 0
        assert failures == [None]
        now_s = time.monotonic()
        gap_s, last_s = max(gap_s, now_s - last_s), now_s
    return gap_s


def data_of(cluster: flowstone.Cluster, node_id: int) -> str:
    return str(cluster._host(node_id)._app.config.log_dirs)


def states(cluster: flowstone.Cluster) -> list[Any]:
    return [cluster.image.topics[TOPIC].partitions[partition] for partition in range(PARTITIONS)]


def eventually(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, "it does not come to be"
        time.sleep(0.05)


@pytest.mark.parametrize("way", ["low", "full"])
def test_others_lead_while_a_brokers_disk_is_full_and_it_comes_back_by_itself(
    cluster: flowstone.Cluster, disks: Disks, way: str
) -> None:
    node_id = states(cluster)[0].leader
    setattr(disks, way, data_of(cluster, node_id))
    assert produce(cluster) < GAP_S
    eventually(lambda: all(node_id not in (each.leader, *each.isr) for each in states(cluster)))
    assert produce(cluster) < GAP_S
    setattr(disks, way, "")
    eventually(lambda: all(len(each.isr) == 3 for each in states(cluster)))
    produce(cluster)


def test_the_last_replica_in_sync_stays_though_its_disk_is_full(cluster: flowstone.Cluster, disks: Disks) -> None:
    first, second, last = 1, 2, 3
    for node_id in (first, second):
        cluster.kill(node_id)
    cluster.advance(minutes=1)
    eventually(lambda: all(each.isr == (last,) for each in states(cluster)))
    disks.low = data_of(cluster, last)
    time.sleep(2.0)
    assert all((each.leader, each.isr) == (last, (last,)) for each in states(cluster))
    for node_id in (first, second):
        cluster.restart(node_id)
    eventually(lambda: all(set(each.isr) == {first, second} for each in states(cluster)))
    produce(cluster)


def test_a_full_follower_deletes_what_its_leader_has_deleted(cluster: flowstone.Cluster, disks: Disks) -> None:
    placed = states(cluster)[0]
    follower = next(node_id for node_id in placed.isr if node_id != placed.leader)
    disks.low = data_of(cluster, follower)
    eventually(lambda: follower not in states(cluster)[0].isr)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_records([TopicPartition(TOPIC, 0, 5)])
    replica = cluster._host(follower)._app.services.partitions.get(TOPIC, 0)
    eventually(lambda: replica.log.log_start_offset == 5)
