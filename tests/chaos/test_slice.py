"""A cluster of real processes under load: a leader is killed, paused and killed, and every broker is restarted in turn.

A short slice of `python -m tests.chaos.run`, which has every fault class.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rounds import describe

from .arena import PROGRESS_S_MAX, Arena
from .cluster import ChaosCluster
from .network import Loopback
from .tellers import Staff
from .traffic import GROUP

RECORDS_PER_SECOND = 200
TRANSACTIONS_MIN = 50
# Failover takes a session: the shortest that a busy machine keeps up with.
SETTINGS = {"zookeeper.session.timeout.ms": "2000"}


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    with (
        ChaosCluster(tmp_path, Loopback(), settings=SETTINGS) as cluster,
        Arena(cluster, tmp_path, RECORDS_PER_SECOND, Staff(fixed=1, tellers=4)) as arena,
    ):
        yield arena


@pytest.mark.timeout(240)
def test_nothing_acknowledged_is_lost_when_leaders_and_coordinators_die_and_all_brokers_restart(arena: Arena) -> None:
    cluster = arena.cluster

    leader = cluster.nodes[cluster.describe()[arena.partitions[0]].leader]
    leader.kill()
    assert arena.wait_progress(time.monotonic()), "the others go on without it"
    leader.start()

    commits = arena.group.acknowledged_count
    coordinator = cluster.coordinator_of(GROUP)
    assert coordinator.process is not None
    coordinator.process.pause()
    assert arena.wait_progress(time.monotonic()), "the others go on without it"
    deadline = time.monotonic() + PROGRESS_S_MAX
    while arena.group.acknowledged_count <= commits + len(arena.partitions):
        assert time.monotonic() < deadline, "the group goes on with another coordinator"
        time.sleep(0.05)
    coordinator.kill()
    coordinator.start()
    arena.recover(time.monotonic(), "a pause and a kill")

    for node in cluster.nodes.values():
        assert node.terminate() == 0
        node.start()
        arena.recover(time.monotonic(), "a restart")

    anomalies = arena.finish()
    assert not anomalies, describe(anomalies)
    transactions = len(arena.bank.claims.committed)
    assert transactions > TRANSACTIONS_MIN
    commits = arena.group.acknowledged_count
    print(f"{arena.acknowledged_count} acknowledged, {commits} commits, {transactions} transactions")
