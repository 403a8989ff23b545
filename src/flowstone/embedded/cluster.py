"""`Cluster`: several brokers in this process that form a cluster, with injection of failures.

Each broker is a `Broker` in its own thread. By default the brokers share metadata in memory, which needs no Java and no
ZooKeeper, and one virtual clock. Optionally they use a real ZooKeeper. Any thread may call the methods.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from datetime import timedelta
from itertools import chain
from types import TracebackType
from typing import Self

from flowstone.cluster.image.cluster_image import ClusterImage, PartitionImage
from flowstone.cluster.logs.consensus import Consensus
from flowstone.cluster.memory_ensemble import MemoryEnsemble
from flowstone.embedded.broker import WAIT_TIMEOUT_S, Broker
from flowstone.embedded.cut_network import CutNetwork, Links
from flowstone.embedded.gate import Gate
from flowstone.embedded.host import BROKERS_DEFAULT, NotServing, Record, timed_out
from flowstone.embedded.thread_host import Surroundings, ThreadHost
from flowstone.embedded.zookeeper_server import ZooKeeperServer
from flowstone.errors import ApiError, ErrorCode, StartupError
from flowstone.ports.clock import SystemClock, VirtualClock
from flowstone.types import TopicPartition

# Time until a killed broker is detected. Too short for several machines, but tests wait for it.
SESSION_TIMEOUT_S = 2.0
REPLICAS_MAX = 3
POLL_S = 0.01


class Cluster:
    """A cluster of brokers, running from construction until `stop` or the end of its `with` block.

    Node ids start at 1.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        zookeeper: bool = False,
        http: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Start the brokers. Raises StartupError if one cannot start.

        `zookeeper` selects a real ZooKeeper, which needs Java and the `spark` extra. Topics have three replicas, or as
        many as there are brokers, and two of them must be in sync for acks=all.
        """
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        replicas = min(REPLICAS_MAX, brokers)
        given: dict[str, object] = {
            "default.replication.factor": replicas,
            "min.insync.replicas": min(2, replicas),
            "zookeeper.session.timeout.ms": int(SESSION_TIMEOUT_S * 1000),
            **(settings or {}),
        }
        self.brokers: dict[int, Broker] = {}
        self._around = _ZooKeeper() if zookeeper else _Memory()
        with ExitStack() as undo:
            undo.callback(self.stop)
            for node_id in range(1, brokers + 1):
                own = {**given, **self._around.settings(node_id), "node.id": node_id}
                broker = self.brokers[node_id] = _ClusterBroker(self._around, http=http, settings=own)
                self._around.links.add(node_id, broker.port)
            self._wait_introduced()
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_introduced(self) -> None:
        """Return when every broker knows all the others."""
        for _ in _tries(WAIT_TIMEOUT_S):
            known = [host.image().brokers.values() for host in map(self._host, self.brokers)]
            if all(sum(not broker.is_fenced for broker in each) == len(self.brokers) for each in known):
                return
        raise StartupError("the brokers of the cluster do not all know of each other")

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def stop(self) -> None:
        """Stop every broker cleanly and remove the data. May be called repeatedly."""
        self.heal()
        for broker in self.brokers.values():
            broker.stop()
        self._around.stop()

    # Failures

    def kill(self, node_id: int) -> None:
        """End a broker like a crash of its process; `restart` starts it again with its data."""
        self.brokers[node_id].kill()

    def restart(self, node_id: int) -> None:
        """Stop a broker cleanly, unless it was killed, and start it again."""
        self.brokers[node_id].restart()

    def pause(self, node_id: int) -> None:
        self.brokers[node_id].pause()

    def resume(self, node_id: int) -> None:
        self.brokers[node_id].resume()

    def partition(self, *groups: Collection[int]) -> None:
        """Cut the network between groups of brokers: `partition({1}, {2, 3})`. Clients still reach all of them.

        Only the largest group, the first of several equal ones, still reaches the metadata store.
        """
        unknown = {node_id for group in groups for node_id in group} - set(self.brokers)
        if unknown:
            raise ValueError(f"there is no broker {min(unknown)}")
        self._around.links.cut(groups)
        reachable = max(groups, key=len, default=())
        self._around.cut_off({node_id for group in groups for node_id in group} - set(reachable))

    def heal(self) -> None:
        """Restore all connections between brokers."""
        self._around.links.cut(())
        self._around.cut_off(())

    # Contents

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic. Raises ApiError if the cluster refuses it."""
        self._any_host().create_topic(
            name,
            BROKERS_DEFAULT if partitions is None else partitions,
            configs or {},
            BROKERS_DEFAULT if replication_factor is None else replication_factor,
        )

    def records(self, topic: str, *, read_committed: bool = False) -> list[Record]:
        """Return all records that a consumer could read now, by partition and offset.

        `read_committed` omits records of aborted and open transactions. Raises ApiError if the topic does not exist.
        """
        image = self.image
        if topic not in image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
        leaders = {placed.leader for placed in image.topics[topic].partitions}
        hosts = [self._host(node_id) for node_id in sorted(leaders) if node_id in self.brokers]
        found = [host.led_records(topic, read_committed=read_committed) for host in hosts if host.is_running]
        return sorted(chain.from_iterable(found))

    def wait_for(
        self, topic: str, n: int, timeout: float = WAIT_TIMEOUT_S, *, read_committed: bool = False
    ) -> list[Record]:
        """Return the topic's records as soon as there are `n`; the topic may be created meanwhile.

        Raises TimeoutError if there are fewer after `timeout` seconds.
        """
        found: list[Record] | None = None
        for _ in _tries(timeout):
            found = self.records(topic, read_committed=read_committed) if topic in self.image.topics else None
            if found is not None and len(found) >= n:
                return found
        raise timed_out(topic, n, timeout, None if found is None else len(found))

    # Decisions

    @property
    def image(self) -> ClusterImage:
        """Return the newest metadata image of any broker. Raises NotServing if no broker runs."""
        images = [host.image() for host in map(self._host, self.brokers) if host.is_running]
        if not images:
            raise NotServing("no broker of the cluster is running")
        return max(images, key=lambda image: image.version)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the node id of the partition's leader, or -1 if it has none."""
        return self._placed(topic, partition).leader

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """Return the node ids of the in-sync replicas."""
        return set(self._placed(topic, partition).isr)

    def wait_in_sync(self, topic: str, timeout: float = WAIT_TIMEOUT_S) -> None:
        """Wait until all replicas of the topic's partitions are in sync. Raises TimeoutError if they are not."""
        for _ in _tries(timeout):
            placed = self.image.topics[topic].partitions if topic in self.image.topics else ()
            if placed and all(set(each.isr) == set(each.replicas) for each in placed):
                return
        raise TimeoutError(f"the replicas of {topic!r} are not in sync after {timeout:g} s: {placed}")

    def wait_for_leader(
        self, topic: str, partition: int = 0, *, other_than: int | None = None, timeout: float = WAIT_TIMEOUT_S
    ) -> int:
        """Wait for a leader that is not `other_than` and return it. Raises TimeoutError if there is none."""
        for _ in _tries(timeout):
            leader = self.leader(topic, partition)
            if leader not in (other_than, -1):
                return leader
        raise TimeoutError(f"{TopicPartition(topic, partition)} has no other leader after {timeout:g} s")

    # Time

    def advance(self, **by: float) -> None:
        """Advance the clock of every broker, with the arguments of `timedelta`: `advance(seconds=30)`.

        This does not affect a real ZooKeeper, which detects failed members in real time.
        """
        step = timedelta(**by)
        if step < timedelta():
            raise ValueError(f"a clock cannot go back, not even by {-step}")
        running = [node_id for node_id in self.brokers if self._host(node_id).is_running]
        self._around.advanced(running, step.total_seconds())
        for host in map(self._host, self.brokers):
            if host.is_running:
                host.advance(round(step.total_seconds() * 1000))
            else:
                host.clock.advanced_ms += round(step.total_seconds() * 1000)  # applies to its next start

    def _placed(self, topic: str, partition: int) -> PartitionImage:
        placed = self.image.partition(TopicPartition(topic, partition))
        if placed is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {TopicPartition(topic, partition)}")
        return placed

    def _host(self, node_id: int) -> ThreadHost:
        return self.brokers[node_id]._in_thread("brokers of a cluster are in threads")

    def _any_host(self) -> ThreadHost:
        host = next((host for host in map(self._host, self.brokers) if host.is_running), None)
        if host is None:
            raise NotServing("no broker of the cluster is running")
        return host


class _ClusterBroker(Broker):
    def __init__(self, around: Surroundings, *, http: bool, settings: Mapping[str, object]) -> None:
        self._around = around
        super().__init__(http=http, settings=settings)

    def _new_thread_host(self, values: Mapping[str, str]) -> ThreadHost:
        return ThreadHost(values, self._faults, self._around)


class _Memory:
    """The in-memory metadata store that the brokers share, and the network between them."""

    def __init__(self) -> None:
        self.links = Links()
        self._ensemble = MemoryEnsemble(SESSION_TIMEOUT_S)
        self._cut_off: set[int] = set()

    def settings(self, node_id: int) -> Mapping[str, object]:
        return {}

    def consensus(self, node_id: int, clock: VirtualClock) -> Consensus:
        return self._ensemble.tie(clock, asyncio.get_running_loop())

    def network(self, node_id: int) -> CutNetwork:
        return self.links.network(node_id)

    def cut_off(self, node_ids: Collection[int]) -> None:
        """Cut these brokers, and no others, off from the metadata store."""
        for node_id in self._cut_off.symmetric_difference(node_ids):
            (self._ensemble.cut if node_id in node_ids else self._ensemble.heal)(node_id)
        self._cut_off = set(node_ids)

    def advanced(self, alive: Collection[int], seconds: float) -> None:
        """Prepare for an advance of the clocks: live brokers stay members, dead ones are detected sooner."""
        self._ensemble.prolong(alive, seconds)

    def stop(self) -> None:
        """Discard the store."""


class _ZooKeeper:
    """The counterpart of `_Memory` for brokers that use a real ZooKeeper."""

    def __init__(self) -> None:
        self.links = Links()
        self._server = ZooKeeperServer()
        self._gates: dict[int, Gate] = {}

    def settings(self, node_id: int) -> Mapping[str, object]:
        host, _, port = self._server.address.rpartition(":")
        gate = self._gates[node_id] = Gate(host, int(port))
        return {"zookeeper.connect": gate.address}

    def consensus(self, node_id: int, clock: VirtualClock) -> None:
        """Return None: the settings name the ZooKeeper."""

    def network(self, node_id: int) -> CutNetwork:
        return self.links.network(node_id)

    def cut_off(self, node_ids: Collection[int]) -> None:
        for node_id, gate in self._gates.items():
            if node_id in node_ids:
                gate.shut()
            else:
                gate.open()

    def advanced(self, alive: Collection[int], seconds: float) -> None:
        """Do nothing: ZooKeeper uses the machine's time."""

    def stop(self) -> None:
        for gate in self._gates.values():
            gate.close()
        self._server.stop()


def _tries(timeout_s: float) -> Iterator[None]:
    """Yield repeatedly until the timeout, with a short pause after each attempt."""
    monotonic, rest = SystemClock().monotonic, threading.Event()
    deadline = monotonic() + timeout_s
    while True:
        yield
        if monotonic() >= deadline:
            return
        rest.wait(POLL_S)
