"""Share groups on a cluster of real processes whose leaders are killed, paused and stopped: see `work`.

A short slice of `python -m tests.chaos.run`, which has every fault class.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flowstone.types import TopicPartition
from tests.chaos.cluster import ChaosCluster, Node
from tests.chaos.network import Loopback
from tests.chaos.queues.work import LETTERS, TASKS, QueueWork
from tests.chaos.replicas import read_copy
from tests.faults.rounds import describe

SETTINGS = {"zookeeper.session.timeout.ms": "2000"}
TRAFFIC_S, PAUSE_S = 2.0, 3.0
IN_SYNC_S_MAX = 60.0
STATES = "__share_group_state"


def kill(node: Node) -> None:
    node.kill()
    time.sleep(1.0)
    node.start()


def pause_and_kill(node: Node) -> None:
    assert node.process is not None
    node.process.pause()
    time.sleep(PAUSE_S)  # longer than a session
    node.kill()
    node.start()


def pause(node: Node) -> None:
    assert node.process is not None
    node.process.pause()
    time.sleep(PAUSE_S)
    node.process.resume()


def restart(node: Node) -> None:
    assert node.terminate() == 0, "".join(node.output[-1:])
    node.start()


@pytest.mark.timeout(400)
def test_share_groups_lose_nothing_and_repeat_nothing_when_leaders_of_tasks_states_and_letters_fail(
    tmp_path: Path,
) -> None:
    with ChaosCluster(tmp_path, Loopback(), settings=SETTINGS) as cluster:
        work = QueueWork(cluster)
        try:
            work.check_going(time.monotonic(), "the start")
            for topic, fault in (
                (TASKS, kill),
                (STATES, pause_and_kill),
                (LETTERS, kill),
                (TASKS, pause),
                (STATES, restart),
            ):
                time.sleep(TRAFFIC_S)
                fault(leader_of_some(cluster, topic))
                work.check_going(time.monotonic(), f"{fault.__name__} of a leader of {topic}")
            work.finish()
        finally:
            work.close()
        assert cluster.wait_in_sync(IN_SYNC_S_MAX)
        cluster.stop()
        node = cluster.nodes[1]
        work.check_disks({partition: read_copy(node.data, partition) for partition in work.all_partitions})
    anomalies = work.anomalies
    assert not anomalies, describe(anomalies)
    figures = work.figures()
    print(figures)
    assert figures["finished"] > figures["produced"] > 0


def leader_of_some(cluster: ChaosCluster, topic: str) -> Node:
    """Return the broker that leads the first partition of a topic that has a leader."""
    until = time.monotonic() + IN_SYNC_S_MAX
    while time.monotonic() < until:
        for partition, replicas in sorted(cluster.describe().items(), key=lambda each: TopicPartition(*each[0])):
            if partition.topic == topic and replicas.leader in cluster.nodes:
                return cluster.nodes[replicas.leader]
        time.sleep(0.1)
    raise AssertionError(f"{topic} has no leader")
