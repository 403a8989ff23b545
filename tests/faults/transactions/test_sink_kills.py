"""Brokers killed with -9 at any step of an exactly-once sink's micro-batches, beside the deaths of drivers and tasks.

One broker, and three of which the victims lead partitions and coordinate the sink's transactions. Readers see each
micro-batch once and whole. FLOWSTONE_FAULTS_SINK_KILLS sets how many kills of brokers each test has,
FLOWSTONE_FAULTS_SEED where their choice begins.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from flowstone import Broker
from flowstone.client import Cluster, Refused
from flowstone.errors import ErrorCode
from tests.chaos.cluster import ChaosCluster
from tests.chaos.network import Loopback
from tests.support.spark.sink_histories import PARTITIONS, History

KILLS = int(os.environ.get("FLOWSTONE_FAULTS_SINK_KILLS", "3"))
FIRST_SEED = int(os.environ.get("FLOWSTONE_FAULTS_SEED", "1"))
KILL_CHANCE = 0.2  # at each step
DELAY_MAX_S, DOWNTIME_MAX_S = 0.05, 0.5  # until the kill, which so falls into the step, and until the start after it
REGISTERED_S = 30.0

pytestmark = pytest.mark.timeout(300 + 30 * KILLS)


class Killer:
    """Kills a broker now and then and starts it again; never two at a time, so that a quorum is always left."""

    def __init__(self, kill_and_start: Callable[[Random, float], None]) -> None:
        self._kill_and_start, self.kills = kill_and_start, 0
        self._thread: threading.Thread | None = None
        self._failed: list[Exception] = []

    def disturb(self, chance: Random) -> None:
        if chance.random() > KILL_CHANCE or (self._thread is not None and self._thread.is_alive()):
            return
        self.wait()
        self.kills += 1
        self._thread = threading.Thread(target=self._run, args=(Random(chance.random()),))
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
        assert self._failed == []

    def _run(self, chance: Random) -> None:
        threading.Event().wait(chance.uniform(0, DELAY_MAX_S))
        try:
            self._kill_and_start(chance, chance.uniform(0, DOWNTIME_MAX_S))
        except Exception as error:
            self._failed.append(error)


def create(cluster: Cluster, topic: str) -> None:
    """Create a topic as soon as enough brokers are back after a kill."""
    until_s = time.monotonic() + REGISTERED_S
    while True:
        try:
            cluster.ensure_topics([topic])
            return
        except Refused as error:
            if error.code is not ErrorCode.INVALID_REPLICATION_FACTOR or time.monotonic() > until_s:
                raise
        threading.Event().wait(0.1)


def run_histories(bootstrap: str, killer: Killer) -> None:
    seed = FIRST_SEED
    while killer.kills < KILLS:
        topic = f"t-{uuid.uuid4().hex[:8]}"
        with Cluster(bootstrap) as cluster:
            create(cluster, topic)
            assert cluster.topics([topic])[topic] == PARTITIONS
        try:
            History(bootstrap, topic, seed, killer.disturb).run()
        finally:
            killer.wait()
        seed += 1


def test_one_broker_is_killed_at_any_step(tmp_path: Path) -> None:
    with Broker(mode="process", settings={"num.partitions": str(PARTITIONS)}) as broker:

        def kill_and_start(chance: Random, downtime_s: float) -> None:
            broker.kill()
            threading.Event().wait(downtime_s)
            broker.restart()

        run_histories(broker.bootstrap, Killer(kill_and_start))


def test_leaders_and_coordinators_of_three_brokers_are_killed_at_any_step(tmp_path: Path) -> None:
    with ChaosCluster(tmp_path, Loopback(), settings={"num.partitions": str(PARTITIONS)}) as cluster:

        def kill_and_start(chance: Random, downtime_s: float) -> None:
            node = cluster.nodes[chance.choice(list(cluster.nodes))]
            node.kill()
            threading.Event().wait(downtime_s)
            node.start()

        run_histories(cluster.bootstrap, Killer(kill_and_start))
        assert cluster.faults() == []
