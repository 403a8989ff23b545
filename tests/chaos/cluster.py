"""Three brokers and a ZooKeeper as processes, to be killed, stopped, cut off, filled up and started again.

Every record has three copies, and two must have it before it is acknowledged. With `disks`, each broker's data is on an
ext4 of its own, which can be full and can lose its power. What happens to a cluster is decided elsewhere.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from flowstone.embedded.zookeeper_server import ZooKeeperServer
from flowstone.types import TopicPartition
from tests.faults.filesystems import LoopExt4
from tests.support.broker_process import UP, BrokerDied, BrokerProcess
from tests.support.ports import free_ports

from .network import Loopback, Namespaces

NODE_IDS = (1, 2, 3)
REPLICATION_FACTOR, MIN_INSYNC_REPLICAS = 3, 2
START_ATTEMPTS = 3
ASK_TIMEOUT_S = 2.0
SETTLE_TIMEOUT_S = 60.0
POLL_S = 0.05
PORT = 9092
_SKEWED_UP = Path(__file__).with_name("skewed_up.py")
# Kafka's defaults but for what makes things happen more often: shrinking, leaders that go home, new segments, timeouts.
SETTINGS = {
    "listeners.insecure.enable": "true",  # in network namespaces of its own
    "default.replication.factor": str(REPLICATION_FACTOR),
    "min.insync.replicas": str(MIN_INSYNC_REPLICAS),
    "offsets.topic.replication.factor": str(REPLICATION_FACTOR),
    "offsets.topic.num.partitions": "3",
    "offsets.topic.segment.bytes": str(4 << 20),
    "transaction.state.log.replication.factor": str(REPLICATION_FACTOR),
    "transaction.state.log.min.isr": str(MIN_INSYNC_REPLICAS),
    "transaction.state.log.num.partitions": "5",
    "transaction.state.log.segment.bytes": str(4 << 20),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
    "share.coordinator.state.topic.num.partitions": "3",
    "replica.lag.time.max.ms": "4000",
    "leader.imbalance.check.interval.seconds": "5",
    "log.segment.bytes": str(4 << 20),
    "log.retention.ms": "-1",
    "log.dir.free.min.bytes": "0",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}


class Replicas(NamedTuple):
    leader: int  # -1: none
    isr: tuple[int, ...]


class Node:
    """One broker's place: its data and address stay, processes come and go."""

    def __init__(self, cluster: ChaosCluster, node_id: int, directory: Path, disk: LoopExt4 | None, port: int) -> None:
        self.node_id, self.disk, self.port = node_id, disk, port
        self.data = (disk.path if disk is not None else directory) / "data"
        self.clock_file = directory / "clock"
        self._ballast = (disk.path if disk is not None else directory) / "ballast"
        self._cluster = cluster
        self.process: BrokerProcess | None = None
        self.output: list[str] = []
        self.failed_starts = 0

    @property
    def address(self) -> str:
        return f"{self._cluster.network.host_of(self.node_id)}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    def start(self) -> None:
        """Returns when it serves. A start while ZooKeeper or the network comes back may fail, and is tried again."""
        for attempt in range(START_ATTEMPTS):
            self.process = self._spawn()
            try:
                self.process.wait_ready()
                return
            except BrokerDied:
                self.output.append(self.process.output)
                self.failed_starts += 1
                if attempt == START_ATTEMPTS - 1:
                    raise

    def _spawn(self) -> BrokerProcess:
        own = {"node.id": str(self.node_id), "zookeeper.connect": self._cluster.zookeeper.address}
        program = (
            self._cluster.program if self.disk is None else (sys.executable, str(_SKEWED_UP), str(self.clock_file))
        )
        return BrokerProcess(
            self.data,
            host=self._cluster.network.host_of(self.node_id),
            port=self.port,
            settings={**SETTINGS, **self._cluster.settings, **own},
            program=program,
            tracer=self._cluster.network.prefix_of(self.node_id),
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._forget()

    def terminate(self) -> int:
        """As an operator stops it; the exit status."""
        assert self.process is not None
        status = self.process.terminate()
        self._forget()
        return status

    def _forget(self) -> None:
        assert self.process is not None
        self.output.append(self.process.output)
        self.process = None

    # What can go wrong with its machine

    def fill_disk(self) -> None:
        statistics = os.statvfs(self._ballast.parent)
        with open(self._ballast, "wb", buffering=0) as file:
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, statistics.f_bavail * statistics.f_frsize)
            file.seek(0, os.SEEK_END)
            with suppress(OSError):  # and the last few blocks
                while True:
                    file.write(bytes(statistics.f_frsize))

    def empty_disk(self) -> None:
        self._ballast.unlink()

    def turn_disk_read_only(self) -> None:
        assert self.disk is not None
        self.disk.turn_read_only()

    def mend_disk(self) -> None:
        """Nobody may have files of it open."""
        assert self.disk is not None
        self.disk.restore_power()

    def set_clock(self, offset_s: int) -> None:
        self.clock_file.write_text(str(offset_s))

    def lose_power(self) -> None:
        """Nothing runs without power: the process is stopped first, in the middle of whatever it does."""
        assert self.process is not None
        assert self.disk is not None
        self.process.pause()
        self.disk.lose_power()
        self.kill()

    def restore_power(self) -> None:
        assert self.disk is not None
        self.disk.restore_power()


class ChaosCluster:
    """Serves once constructed, until the end of its `with` block."""

    def __init__(
        self,
        directory: Path,
        network: Loopback | Namespaces,
        *,
        disk_bytes: int | None = None,
        settings: Mapping[str, str] | None = None,
        program: Sequence[str] = UP,
    ) -> None:
        """Without `disk_bytes` data is in plain directories, and brokers are what `program` starts."""
        self.network, self.settings, self.program = network, settings or {}, program
        self._stack = ExitStack()
        with self._stack:
            self._stack.callback(network.close)
            self.zookeeper = self._stack.enter_context(
                ZooKeeperServer(str(directory / "zookeeper"), host=network.zookeeper_host)
            )
            self.nodes = {node_id: self._place(directory / str(node_id), node_id, disk_bytes) for node_id in NODE_IDS}
            for node in self.nodes.values():
                self._stack.callback(node.kill)
            with ThreadPoolExecutor() as pool:
                list(pool.map(Node.start, self.nodes.values()))
            self.bootstrap = ",".join(node.address for node in self.nodes.values())
            self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 4000})
            self._stack = self._stack.pop_all()

    def _place(self, directory: Path, node_id: int, disk_bytes: int | None) -> Node:
        directory.mkdir(parents=True)
        disk = None
        if disk_bytes is not None:
            disk = LoopExt4(directory, disk_bytes)
            self._stack.callback(disk.unmount)
        port = PORT if isinstance(self.network, Namespaces) else free_ports()
        return Node(self, node_id, directory, disk, port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def create_topic(self, topic: str, partitions: int) -> list[TopicPartition]:
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=REPLICATION_FACTOR)
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            try:
                self.admin.create_topics([wanted])[topic].result()
                break
            except KafkaException as error:  # on a busy machine a session may end while others start
                is_incomplete = error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR
                if not is_incomplete or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
        return [TopicPartition(topic, number) for number in range(partitions)]

    def describe(self) -> dict[TopicPartition, Replicas]:
        """As some broker sees it; empty if none answers."""
        try:
            topics = self.admin.list_topics(timeout=ASK_TIMEOUT_S).topics
        except KafkaException:
            return {}
        return {
            TopicPartition(name, number): Replicas(each.leader, tuple(each.isrs))
            for name, topic in topics.items()
            for number, each in topic.partitions.items()
        }

    def controller_id(self) -> int:
        """-1 if nobody answers."""
        try:
            return int(self.admin.list_topics(timeout=ASK_TIMEOUT_S).controller_id)
        except KafkaException:
            return -1

    def coordinator_of(self, group_id: str) -> Node:
        described = self.admin.describe_consumer_groups([group_id])[group_id].result(SETTLE_TIMEOUT_S)
        return self.nodes[described.coordinator.id]

    def wait_in_sync(self, timeout_s: float = SETTLE_TIMEOUT_S) -> bool:
        """Until every partition has all its replicas; whether that came to pass in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            described = self.describe()
            if described and all(len(each.isr) == REPLICATION_FACTOR for each in described.values()):
                return True
            time.sleep(POLL_S)
        return False

    def stop(self) -> None:
        """Every broker, cleanly, one after the other."""
        for node in self.nodes.values():
            assert node.terminate() == 0, "".join(node.output[-1:])

    def faults(self) -> list[str]:
        """What brokers have said that only a mistake in them can cause."""
        told = [*(text for node in self.nodes.values() for text in node.output)]
        told += [node.process.output for node in self.nodes.values() if node.process is not None]
        return [line for text in told for line in text.splitlines() if "Traceback" in line or "CRITICAL" in line]
