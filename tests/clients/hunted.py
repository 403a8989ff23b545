"""A cluster of three brokers in place of one, for the same tests, which loses a broker to SIGKILL in every test.

    python -m tests.clients.hunted [arguments of pytest]

Three copies of everything, two of which an acknowledgement waits for. The tests do not know: what they expect of one
broker they expect of a cluster of which one is missing. As soon as a test's topic is there, its leader dies or, in
every other test, the coordinator of groups. Before the next test all are back, for a topic with three replicas needs
three brokers to be made, here as in Kafka. Producers are idempotent where they wait for all replicas: others may well
write twice what they had to send again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import pytest

from flowstone.types import TopicPartition
from tests.chaos.cluster import ChaosCluster
from tests.chaos.network import Loopback
from tests.clients.driver import CLUSTER_VARIABLE

DIRECTORY = Path(__file__).parent
SUITES = [str(DIRECTORY / name) for name in ("test_records.py", "test_offsets.py", "test_groups.py")]
# kafka-python and aiokafka leave sockets to the collector when a broker goes away.
WARNINGS = "-W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning"
# Shorter than clients' timeouts in these tests, by as much as it takes a cluster to go on.
SETTINGS = {"zookeeper.session.timeout.ms": "2000"}
COORDINATED = "__consumer_offsets"
DOWN_S, LOOK_S = 1.0, 0.05
ANSWER_S = 0.3  # by then whoever made the topic has heard so
END_TIMEOUT_S = 90.0


class HuntedCluster:
    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.kills = 0
        self._cluster = ChaosCluster(directory, Loopback(), settings={**SETTINGS, **settings})
        self.bootstrap = self._cluster.bootstrap
        self._ended, self._whole = threading.Event(), threading.Event()
        self._whole.set()
        self._known = set(self._cluster.describe())
        self._hunter = threading.Thread(target=self._hunt, name="hunter", daemon=True)
        self._hunter.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._hunter.join(END_TIMEOUT_S)
        self._cluster.__exit__(kind, error, traceback)
        print(f"{self.kills} brokers were killed")

    @property
    def data_directory(self) -> NoReturn:
        pytest.skip("looks into the data directory of the only broker")

    def wait_whole(self) -> None:
        """Until every topic has cost a broker, every broker is back, and every replica in sync."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while not self._whole.is_set() or not self._cluster.describe().keys() <= self._known:
            assert time.monotonic() < deadline, "the cluster does not become whole"
            time.sleep(LOOK_S)

    def _hunt(self) -> None:
        for is_coordinators_turn in cycle((False, True)):
            new = self._wait_topic()
            if new is None:
                return
            self._whole.clear()
            self._ended.wait(ANSWER_S)
            described = self._cluster.describe()
            coordinated = TopicPartition(COORDINATED, 0)
            prey = coordinated if is_coordinators_turn and coordinated in described else new
            self._kill(described[prey].leader)
            self._known = set(self._cluster.describe())
            self._whole.set()

    def _wait_topic(self) -> TopicPartition | None:
        """A partition of the next new topic; None at the end."""
        while not self._ended.wait(LOOK_S):
            new = self._cluster.describe().keys() - self._known
            if new:
                return min(new)
        return None

    def _kill(self, node_id: int) -> None:
        node = self._cluster.nodes[node_id]
        node.kill()
        self.kills += 1
        self._ended.wait(DOWN_S)
        node.start()
        self._cluster.wait_in_sync()


if __name__ == "__main__":
    runner = str(DIRECTORY.parents[1] / "scripts" / "run_tests.py")
    environment = {**os.environ, CLUSTER_VARIABLE: "1", "PYTEST_ADDOPTS": WARNINGS}
    os.execve(sys.executable, [sys.executable, runner, *(sys.argv[1:] or SUITES)], environment)
