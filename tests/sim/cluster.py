"""A cluster of whole brokers on simulated machines, and everything that can happen to machines.

Each machine has a disk that outlives the processes on it. A broker that dies is started again by whoever killed it; one
that cannot start is tried again, as a supervisor would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from flowstone.app import App
from flowstone.client.connection import Address
from flowstone.cluster.image.cluster_image import NO_LEADER, ClusterImage
from flowstone.cluster.memory_ensemble import MemoryConsensus, MemoryEnsemble
from flowstone.config.cluster import RACK_AWARE_REPLICA_SELECTOR
from flowstone.errors import StartupError, StorageFault
from flowstone.types import TopicPartition

from .clock import ProcessClock
from .disk import SimulatedDisk
from .loop import NEUTRAL, Process, SimulatedLoop
from .network import SimulatedNetwork

PORT = 9092
SESSION_TIMEOUT_S = 2.0
LEASE_SHARE = 2 / 3  # R7: a leader's lease is shorter than its session
NO_LEASE = -1.0
NO_EPOCH = -1
START_AGAIN_S = 0.5
# The way to the ensemble and back takes so long at most, in one seed or another.
ENSEMBLE_DELAY_S_MIN, ENSEMBLE_DELAYS_S_MAX = 0.0005, (0.004, 0.03, 0.15)
SETTINGS = {
    "log.dirs": "/data",
    "num.partitions": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "100",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1500",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.max.bytes": "49152",
    "replica.fetch.response.max.bytes": "65536",
    "leader.imbalance.check.interval.seconds": "3",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "replica.selector.class": RACK_AWARE_REPLICA_SELECTOR,
    "log.cleaner.backoff.ms": "300",
    # No record gets so old here, but by a clock that is wrong.
    "log.retention.ms": "2400000",
    "log.retention.check.interval.ms": "700",
    "log.scrub.bytes.per.second": "0",
    "listeners.insecure.enable": "true",
}


class Machine:
    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster, self.node_id, self.name = cluster, node_id, f"b{node_id}"
        self.disk = SimulatedDisk(cluster.loop, cluster.random)
        self.clock = ProcessClock(cluster.loop)
        self.process: Process | None = None
        self.app: App | None = None
        self.is_serving = self._is_cut_off = False
        self.consensus: MemoryConsensus | None = None
        self._starting: asyncio.Task[None] | None = None
        self.lease_until_s = NO_LEASE
        self._blank_since = NO_EPOCH

    @property
    def is_running(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        """Its power is on, and its broker begins a new life."""
        if self.process is not None:
            return
        cluster = self.cluster
        cluster.network.power_up(self.name)
        self.disk.fail_nothing()
        process = self.process = cluster.new_process(self.name)
        self.consensus = cluster.ensemble.tie(self.clock, deliver=cluster.delivery(process))
        self.lease_until_s = NO_LEASE
        self._note_renewals(self.consensus)
        if self._is_cut_off:
            self.consensus.cut()
        values = SETTINGS | {
            "node.id": str(self.node_id),
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            "broker.rack": self.name,
        }
        self.app = App(
            values,
            files=self.disk,
            clock=self.clock,
            network=cluster.network.host(self.name, process),
            consensus=self.consensus,
        )
        cluster.note(f"{self.name} starts")
        self._starting = process.start(self.app.start())
        self._starting.add_done_callback(partial(self._started, process), context=NEUTRAL)

    def _note_renewals(self, consensus: MemoryConsensus) -> None:
        """When the broker may lead, reckoned without its help."""
        renew = consensus.renew

        async def note() -> bool:
            sent_s = self.cluster.loop.time()
            is_member = await renew()
            if is_member:
                self.lease_until_s = sent_s + LEASE_SHARE * SESSION_TIMEOUT_S
            return is_member

        consensus.renew = note  # type: ignore[method-assign]

    def _started(self, process: Process, starting: asyncio.Task[None]) -> None:
        if self.process is not process:
            return
        error = starting.exception()
        if error is None:
            self.is_serving = True
            self.cluster.note(f"{self.name} serves")
            assert self.app is not None
            failing = process.start(self.app.wait_failed())
            failing.add_done_callback(partial(self._disk_failed, process), context=NEUTRAL)
            return
        self.cluster.note(f"{self.name} cannot start: {error!r}")
        if not isinstance(error, StartupError):
            self.cluster.failures.append(f"{self.name} could not start: {error!r}")
        self.kill()
        self.cluster.later(START_AGAIN_S, self.start)

    def _disk_failed(self, process: Process, failing: asyncio.Task[StorageFault]) -> None:
        """The broker leaves the cluster and ends, as `flowstone up` does; what its disk had not taken is gone."""
        if self.process is process and not failing.cancelled():
            self.cluster.note(f"{self.name} gives up: {failing.result()}")
            self.stop(lambda: self.cluster.later(START_AGAIN_S, self.start), loses_power=True)

    def kill(self, *, loses_power: bool = False) -> None:
        """kill -9, or worse."""
        process = self._end()
        if process is None:
            return
        self.cluster.note(f"{self.name} {'loses power' if loses_power else 'is killed'}")
        self.cluster.network.end(process, self.name, loses_power=loses_power)
        if loses_power:
            self.disk.lose_power()
        else:
            self.disk.release_locks()

    def lose_disk(self) -> None:
        """The machine comes back with a new one."""
        self.kill(loses_power=True)
        self.cluster.note(f"{self.name} loses its disk")
        self.disk = SimulatedDisk(self.cluster.loop, self.cluster.random)
        broker = self.cluster.image.brokers.get(self.node_id)
        self._blank_since = broker.epoch if broker is not None else NO_EPOCH

    @property
    def is_blank(self) -> bool:
        """Whether the cluster may still believe that it has what was on its lost disk."""
        broker = self.cluster.image.brokers.get(self.node_id)
        return broker is not None and broker.epoch == self._blank_since

    def _end(self) -> Process | None:
        process, self.process, self.app, self.is_serving = self.process, None, None, False
        if process is not None:
            process.kill()
            assert self.consensus is not None
            self.cluster.ensemble.untie(self.consensus)
            self.cluster.ensemble.log.detach(self.consensus.log)
        return process

    def cut_off(self) -> None:
        """From the ensemble."""
        self._is_cut_off = True
        if self.process is not None and self.consensus is not None:
            self.process.post(self.consensus.cut)

    def reconnect(self) -> None:
        self._is_cut_off = False
        if self.process is not None and self.consensus is not None:
            self.process.post(self.consensus.heal)

    def stop(self, then: Callable[[], None], *, loses_power: bool = False) -> None:
        """In good order; `loses_power` drops what is not on its disk afterwards."""
        if self.process is None or self.app is None or not self.is_serving:
            then()
            return
        self.cluster.note(f"{self.name} stops")
        process = self.process
        process.start(self.app.stop()).add_done_callback(
            partial(self._stopped, process, then, loses_power), context=NEUTRAL
        )

    def _stopped(
        self, process: Process, then: Callable[[], None], loses_power: bool, stopping: asyncio.Task[None]
    ) -> None:
        if self.process is process:
            if stopping.exception() is not None:
                self.cluster.failures.append(f"{self.name} could not stop: {stopping.exception()!r}")
            self.cluster.note(f"{self.name} has stopped")
            self.kill(loses_power=loses_power)
        if self.cluster.has_healed:
            self.start()
        else:
            then()


class Cluster:
    def __init__(self, loop: SimulatedLoop, random: Random, broker_count: int, note: Callable[[str], None]) -> None:
        self.loop, self.random, self.note = loop, random, note
        self.network = SimulatedNetwork(loop, random)
        self.ensemble = MemoryEnsemble(SESSION_TIMEOUT_S)
        self.failures: list[str] = []
        self.has_healed = False
        self._ensemble_delay_s_max = random.choice(ENSEMBLE_DELAYS_S_MAX)
        self._process_count = 0
        self.machines = [Machine(self, node_id) for node_id in range(1, broker_count + 1)]

    @property
    def addresses(self) -> list[Address]:
        return [Address(machine.name, PORT) for machine in self.machines]

    @property
    def image(self) -> ClusterImage:
        """What the cluster has decided, whoever knows of it."""
        return self.ensemble.log._image

    def partitions(self) -> list[TopicPartition]:
        topics = self.image.topics.values()
        return [TopicPartition(topic.name, index) for topic in topics for index in range(len(topic.partitions))]

    def leader(self, partition: TopicPartition) -> Machine | None:
        state = self.image.partition(partition)
        return self.machines[state.leader - 1] if state is not None and state.leader != NO_LEADER else None

    def new_process(self, name: str) -> Process:
        self._process_count += 1
        return Process(self.loop, name, self._process_count)

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Outside of every process."""
        self.loop.call_at(self.loop.time() + delay_s, callback, context=NEUTRAL)

    def delivery(self, process: Process) -> Callable[[Callable[[], None]], None]:
        """What a broker says to the ensemble, and hears from it, comes late and in order."""
        arrives_at = 0.0

        def deliver(callback: Callable[[], None]) -> None:
            nonlocal arrives_at
            delay_s = self.random.uniform(ENSEMBLE_DELAY_S_MIN, self._ensemble_delay_s_max)
            arrives_at = max(arrives_at, self.loop.time() + delay_s)
            # The moment itself: a delay would be rounded, and one may overtake another.
            self.loop.call_at(arrives_at, callback, context=process.context)

        return deliver

    # What happens to it

    def start(self) -> None:
        for machine in self.machines:
            machine.start()

    def heal(self) -> None:
        """Whatever was done to it is undone."""
        self.note("everything heals")
        self.has_healed = True
        self.network.heal()
        for machine in self.machines:
            machine.disk.slowness, machine.disk.is_full = 1.0, False
            machine.disk.fail_nothing()
            machine.reconnect()
            if machine.process is not None:
                machine.process.resume()
            machine.start()

    def not_serving(self) -> list[str]:
        return [machine.name for machine in self.machines if not machine.is_serving]
