"""Brokers that replicate one topic, each with its own log directory, on a simulated network: a test decides who leads.

All of a broker's data path is real: server, dispatch, handlers, partitions, logs, fetchers. There is no membership and
no controller: `decide` is the cluster's decision, which every broker, or those that are named, take up at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from flowstone.broker.fetching.fetch_sessions import FetchSessions
from flowstone.broker.loop.workers import Workers
from flowstone.broker.network.server import Server
from flowstone.broker.requests.batch_preparation import Preparing
from flowstone.broker.requests.parked import Waiting
from flowstone.broker.wiring import make_services
from flowstone.client.connection import Address
from flowstone.client.peer import Peer
from flowstone.cluster.image.cluster_image import BrokerImage, Endpoint, PartitionImage
from flowstone.cluster.image.records import BrokerRegistered, PartitionChanged, TopicCreated
from flowstone.cluster.logs.memory_log import MemoryLog
from flowstone.cluster.metadata import Metadata
from flowstone.config import TopicConfig, parse_broker_config
from flowstone.log.manager import LogManager
from flowstone.ports.clock import SystemClock
from flowstone.ports.loops import new_event_loop
from flowstone.ports.simulated_network import SimulatedNetwork
from flowstone.ports.system_files import SystemFiles
from flowstone.replication.in_sync import ProposedIsr
from flowstone.replication.lease import Lease
from flowstone.replication.partition import ACKS_ALL, Partition
from flowstone.replication.replica_fetch_session import Limits
from flowstone.replication.replica_fetchers import ReplicaFetchers
from flowstone.replication.served_partitions import Partitions
from flowstone.replication.services import ReplicaServices
from flowstone.types import TopicPartition

TOPIC, TOPIC_ID = "t", bytes(range(16))
LISTENER, PORT = "PLAINTEXT", 9092
# Broker 1 registers with epoch 101, and so on.
EPOCH_BASE = 100
TIMEOUT_S = 10.0
RESPONSE_BYTES, PARTITION_BYTES = 10 << 20, 1 << 20


class TopicBroker:
    def __init__(self, topic: ReplicatedTopic, node_id: int, data: Path, settings: dict[str, str]) -> None:
        """`settings` by Kafka's names."""
        self.node_id, self._topic = node_id, topic
        values = {"node.id": str(node_id), "log.dirs": str(data)} | settings
        config, defaults = parse_broker_config(values)
        clock = SystemClock()
        self.partitions = Partitions()
        self.logs = LogManager(
            SystemFiles(),
            clock,
            config,
            on_flushed=self.partitions.flushed,
            on_fault=lambda fault: None,
            high_watermark_of=self.partitions.high_watermark_of,
            decides_retention=self.partitions.leads,
        )
        workers = Workers(1)
        self.services = make_services(
            config=config,
            topic_defaults=defaults,
            clock=clock,
            metadata=topic.metadata,
            logs=self.logs,
            partitions=self.partitions,
            waiting=Waiting(clock, 1000),
            fetch_sessions=FetchSessions(clock, 100, Random(1)),
            preparing=Preparing(workers, clock),
            workers=workers,
            groups=cast(Any, SimpleNamespace(settings=None)),
            transactions=cast(Any, None),
            share_states=cast(Any, SimpleNamespace(peers=None)),
        )
        self._workers = workers
        self.network = topic.network.host(f"host-{node_id}")
        self.server = Server(self.services, self.network)
        self.server.bind(LISTENER, "", PORT)
        self.server.start()
        self.lease = Lease.forever()
        self.proposed: list[tuple[Partition, ProposedIsr]] = []
        self._replica_services = ReplicaServices(
            lease=self.lease,
            monotonic=clock.monotonic,
            logs=self.logs,
            lag_time_max_s=30.0,
            on_isr_change=lambda partition, isr: self.proposed.append((partition, isr)),
            call_later=clock.call_later,
        )
        limits = Limits(config.replica_fetch_wait_max_ms, RESPONSE_BYTES, PARTITION_BYTES)
        rate = config.follower_replication_throttled_rate
        self.fetchers = ReplicaFetchers(node_id, lambda: EPOCH_BASE + node_id, limits, rate, clock, self.network)

    def take_up(self, index: int, state: PartitionImage, config: TopicConfig) -> None:
        partition = self.partitions.find(TopicPartition(TOPIC, index))
        if partition is None:
            log = self.logs.get_or_create(TopicPartition(TOPIC, index), TOPIC_ID, config)
            flusher = self.logs.directory_of(log).flusher
            partition = Partition(log, flusher, state, self.node_id, self._replica_services)
            self.partitions.add(partition)
        else:
            partition.update(state, self.node_id)
        if partition.is_leader or state.leader < 0:
            self.fetchers.unfollow(partition)
        else:
            self.fetchers.follow(partition, state.leader, Address(f"host-{state.leader}", PORT))

    def partition(self, index: int = 0) -> Partition:
        return self.partitions.get(TOPIC, index)

    def append(self, batch: bytes, index: int = 0, acks: int = 1) -> int:
        """The offset after it."""
        return self.partition(index).append(batch, acks).last_offset + 1

    async def committed(self, batch: bytes, index: int = 0) -> None:
        partition = self.partition(index)
        end = self.append(batch, index, ACKS_ALL)
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        partition.when_committed(end, answer.set_result)
        assert await asyncio.wait_for(answer, TIMEOUT_S) == 0

    async def connect(self) -> Peer:
        address = Address(f"host-{self.node_id}", PORT)
        client = self._topic.network.host("client")
        return await Peer.connect(client, SystemClock(), address, "client", TIMEOUT_S)

    def stored(self, index: int = 0) -> bytes:
        """The log's bytes."""
        path = Path(self.partition(index).log.path)
        return b"".join(each.read_bytes() for each in sorted(path.glob("*.log"))) if path.exists() else b""

    def close(self) -> None:
        self.fetchers.close()
        self.server.kill()
        self._workers.close()
        self.logs.abort()


class ReplicatedTopic:
    def __init__(
        self,
        data: Path,
        *,
        partitions: int = 1,
        racks: bool = False,
        config: TopicConfig | None = None,
        **settings: str,
    ) -> None:
        self._data, self._racks, self._config = data, racks, config or TopicConfig()
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._partition_count = partitions
        self.network = SimulatedNetwork(SystemClock())
        self.metadata = Metadata(MemoryLog())
        self.brokers: dict[int, TopicBroker] = {}

    async def start(self, *node_ids: int, leader: int = 1) -> None:
        for node_id in node_ids:
            listeners = {LISTENER: Endpoint(f"host-{node_id}", PORT)}
            rack = f"rack-{node_id}" if self._racks else None
            broker = BrokerImage(node_id, rack, listeners, f"life-{node_id}", EPOCH_BASE + node_id)
            await self.metadata.append([BrokerRegistered(broker)])
            data = self._data / str(node_id)
            self.brokers[node_id] = TopicBroker(self, node_id, data, self._settings)
        state = PartitionImage(leader, 1, 0, node_ids, node_ids)
        states = (state,) * self._partition_count
        await self.metadata.append([TopicCreated(TOPIC, TOPIC_ID, states, {})])
        for index in range(self._partition_count):
            self._taken_up(index, state, node_ids)

    async def decide(
        self, leader: int, isr: Iterable[int] | None = None, *, index: int = 0, heard_by: Iterable[int] | None = None
    ) -> PartitionImage:
        """A new decision of the cluster; a new leader epoch for another leader, or for the same one without an ISR."""
        before = self.metadata.image.topics[TOPIC].partitions[index]
        is_same = isr is not None and leader == before.leader
        state = PartitionImage(
            leader,
            before.leader_epoch + (not is_same),
            before.partition_epoch + 1,
            before.replicas,
            tuple(isr) if isr is not None else before.isr,
        )
        await self.metadata.append([PartitionChanged(TOPIC_ID, index, state)])
        self._taken_up(index, state, self.brokers if heard_by is None else heard_by)
        return state

    def _taken_up(self, index: int, state: PartitionImage, node_ids: Iterable[int]) -> None:
        for node_id in node_ids:
            if node_id in state.replicas:
                self.brokers[node_id].take_up(index, state, self._config)

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()


def run(topic: ReplicatedTopic, scenario: Callable[[ReplicatedTopic], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await scenario(topic)
        finally:
            topic.close()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


async def eventually(condition: Callable[[], bool]) -> None:
    """Returns when it holds; nobody tells of it, so it is looked at again and again."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never came to hold"
        await asyncio.sleep(0.002)
