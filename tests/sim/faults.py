"""What may happen to a cluster, and when: all of it drawn from the seed, and all of it healed in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from flowstone.types import TopicPartition

from .cluster import Cluster, Machine
from .history import OFFSETS_PARTITION, TRANSACTIONS_PARTITION, ClusterHistory

FAULTS_MIN, FAULTS_MAX = 2, 7
DOWN_S_MAX = 4.0
PAUSE_S_MAX = 4.0
# Longer than a session and the time in which others must have taken over.
LONG_PAUSE_S_MIN, LONG_PAUSE_S_MAX = 6.0, 9.0
CUT_S_MAX = 5.0
ISOLATED_S_MAX = 1.5
SLOW_S_MAX = 4.0
SLOWNESS_MAX = 150.0
# Beyond an hour, records of clients with the right time are refused, rightly.
CLOCK_JUMP_MS_MAX = 50 * 60 * 1000
FLIPS_MAX = 3
FLUSHES_BEFORE_MAX = 3
# How often leaders are asked whether they wait for a follower.
AWAITED_LOOK_S = 0.002
# From when a client asks for a commit: until the decision is replicated, or until markers are.
COMMITS_S_MAX = (0.003, 0.01)


# Everything that may happen, by name; what is named twice happens twice as often.
EVERYTHING = (
    "kill",
    "kill_after_acknowledgement",
    "kill_after_acknowledgement",
    "lose_power",
    "lose_all_power",
    "pause",
    "pause",
    "pause_then_kill",
    "separate_then_kill",
    "restart",
    "separate",
    "cut_one_way",
    "cut_from_ensemble",
    "slow_disk",
    "fail_flush",
    "fill_disk",
    "jump_clock",
    "flip_bits",
)

# What may happen besides where there are transactions.
WITH_TRANSACTIONS = ("kill_coordinator_at_commit", "kill_coordinator_at_last_commit", "pause_for_long")

# A lost disk alone: with another broker out at the wrong time, an operator would have to say what is to be lost.
DISK_LOSS = ("jump_clock", "flip_bits", "slow_disk")
DISK_LOSS_SHARE = 0.1


class Faults:
    def __init__(
        self, cluster: Cluster, history: ClusterHistory, random: Random, kinds: Sequence[str] = EVERYTHING
    ) -> None:
        self._cluster, self._history, self._random = cluster, history, random
        self._kinds = self._named(kinds)
        self._is_over = False

    def schedule(self, duration_s: float) -> None:
        everything = self._named(EVERYTHING), self._named((*EVERYTHING, *WITH_TRANSACTIONS))
        if self._kinds in everything and self._random.random() < DISK_LOSS_SHARE:
            self._kinds = self._named(DISK_LOSS)
            self._at(self._random.uniform(0, duration_s), self._lose_disk)
        for _ in range(self._random.randint(FAULTS_MIN, FAULTS_MAX)):
            self._at(self._random.uniform(0, duration_s), self._random.choice(self._kinds))

    def _named(self, kinds: Sequence[str]) -> list[Callable[[], None]]:
        return [getattr(self, f"_{kind}") for kind in kinds]

    def end(self) -> None:
        """Nothing more happens, not even the undoing of what has: that is for whoever heals everything."""
        self._is_over = True

    def _at(self, delay_s: float, happen: Callable[[], None]) -> None:
        self._cluster.later(delay_s, lambda: None if self._is_over else happen())

    def _machine(self) -> Machine:
        return self._random.choice(self._cluster.machines)

    def _later(self, duration_s_max: float, undo: Callable[[], None]) -> None:
        self._at(self._random.uniform(0.05, duration_s_max), undo)

    # Machines and processes

    def _kill(self) -> None:
        machine = self._machine()
        machine.kill()
        self._later(DOWN_S_MAX, machine.start)

    def _kill_after_acknowledgement(self) -> None:
        """The leader dies in the very moment in which a client hears that something is safe."""
        partition = self._random.choice([*self._cluster.partitions(), OFFSETS_PARTITION])
        loses_power = self._random.random() < 0.5

        def spring(acknowledged: TopicPartition) -> None:
            if acknowledged != partition or self._is_over:
                return
            self._history.traps.remove(spring)
            machine = self._cluster.leader(partition)
            if machine is not None:
                self._cluster.later(0, partial(machine.kill, loses_power=loses_power))
                self._later(DOWN_S_MAX, machine.start)

        self._history.traps.append(spring)

    def _kill_while_awaited(self) -> None:
        """A follower dies while its leader waits for it to join the in-sync replicas."""
        if self._is_over:
            return
        for node_id in self._awaited():
            machine = self._cluster.machines[node_id - 1]
            machine.kill()
            self._later(DOWN_S_MAX, machine.start)
            return
        self._at(AWAITED_LOOK_S, self._kill_while_awaited)

    def _awaited(self) -> Iterator[int]:
        """The followers outside the in-sync replicas for which a high watermark waits."""
        for partition in self._cluster.partitions():
            leader = self._cluster.leader(partition)
            found = leader.app.services.partitions.find(partition) if leader and leader.app else None
            if found is None or found.leading is None or found.leading.in_sync.held_until_s is None:
                continue
            in_sync = found.leading.in_sync
            yield from (each for each in in_sync._followers if each not in in_sync._maximal_isr)

    def _kill_coordinator_at_commit(self) -> None:
        """The transaction coordinator dies while it decides, or right after it has decided."""
        self._trap_commit(is_last=False)

    def _kill_coordinator_at_last_commit(self) -> None:
        """So does the client, which will not ask again."""
        self._trap_commit(is_last=True)

    def _trap_commit(self, *, is_last: bool) -> None:
        def spring(is_clients_last: bool) -> None:
            if is_clients_last >= is_last:
                self._history.commit_traps.remove(spring)
                self._at(self._random.uniform(0, self._random.choice(COMMITS_S_MAX)), kill)

        def kill() -> None:
            machine = self._cluster.leader(TRANSACTIONS_PARTITION)
            if machine is not None:
                machine.kill(loses_power=self._random.random() < 0.5)
                self._later(DOWN_S_MAX, machine.start)

        self._history.commit_traps.append(spring)

    def _lose_power(self) -> None:
        machine = self._machine()
        machine.kill(loses_power=True)
        self._later(DOWN_S_MAX, machine.start)

    def _lose_all_power(self) -> None:
        for machine in self._cluster.machines:
            machine.kill(loses_power=True)
            self._later(DOWN_S_MAX, machine.start)

    def _lose_disk(self) -> None:
        machine = self._machine()
        machine.lose_disk()
        self._later(DOWN_S_MAX, machine.start)

    def _restart(self) -> None:
        machine = self._machine()
        machine.stop(lambda: self._later(DOWN_S_MAX, machine.start))

    def _pause(self) -> None:
        process = self._machine().process
        if process is not None:
            self._cluster.note(f"{process.name} is paused")
            process.pause()
            self._later(PAUSE_S_MAX, process.resume)

    def _pause_for_long(self) -> None:
        """Others take over, and its connections stay open all the while."""
        process = self._machine().process
        if process is not None:
            self._cluster.note(f"{process.name} is paused for long")
            process.pause()
            self._at(self._random.uniform(LONG_PAUSE_S_MIN, LONG_PAUSE_S_MAX), process.resume)

    def _pause_then_kill(self) -> None:
        machine = self._machine()
        if machine.process is not None:
            self._cluster.note(f"{machine.name} is paused, and then killed")
            machine.process.pause()
            self._later(PAUSE_S_MAX, machine.kill)
            self._later(PAUSE_S_MAX + DOWN_S_MAX, machine.start)

    # The network

    def _separate(self) -> None:
        """One broker from the two others, clients left aside."""
        self._isolate(self._machine())

    def _separate_then_kill(self) -> None:
        """A leader that nobody follows any more dies before the others are taken for dead."""
        leader = self._cluster.leader(self._random.choice([*self._cluster.partitions(), OFFSETS_PARTITION]))
        if leader is not None:
            self._isolate(leader)
            self._later(ISOLATED_S_MAX, leader.kill)
            self._later(DOWN_S_MAX, leader.start)

    def _isolate(self, alone: Machine) -> None:
        self._cluster.note(f"{alone.name} is cut off from the others")
        for other in self._cluster.machines:
            if other is not alone:
                self._cut(alone.name, other.name)
                self._cut(other.name, alone.name)

    def _cut_one_way(self) -> None:
        sender, receiver = self._random.sample(self._cluster.machines, 2)
        self._cluster.note(f"nothing gets from {sender.name} to {receiver.name}")
        self._cut(sender.name, receiver.name)

    def _cut(self, sender: str, receiver: str) -> None:
        link = self._cluster.network.link(sender, receiver)
        link.is_cut = True
        self._later(CUT_S_MAX, link.heal)

    def _cut_from_ensemble(self) -> None:
        machine = self._machine()
        self._cluster.note(f"{machine.name} does not reach the ensemble")
        machine.cut_off()
        self._later(CUT_S_MAX, machine.reconnect)

    def _flip_bits(self) -> None:
        sender, receiver = self._random.sample(self._cluster.machines, 2)
        self._cluster.note(f"bits flip between {sender.name} and {receiver.name}")
        self._cluster.network.link(sender.name, receiver.name).flips = self._random.randint(1, FLIPS_MAX)

    # Disks and clocks

    def _slow_disk(self) -> None:
        disk = self._machine().disk
        disk.slowness = self._random.uniform(5, SLOWNESS_MAX)

        def be_quick() -> None:
            disk.slowness = 1.0

        self._later(SLOW_S_MAX, be_quick)

    def _fill_disk(self) -> None:
        """Others lead, and nobody waits for it; it is back once there is space."""
        machine = self._machine()
        disk = machine.disk
        self._cluster.note(f"the disk of {machine.name} is full")
        disk.is_full = True

        def have_space() -> None:
            disk.is_full = False

        self._later(SLOW_S_MAX, have_space)

    def _fail_flush(self) -> None:
        """While it serves: in recovery it takes one partition offline, and only another start helps."""
        machine = self._machine()
        if not machine.is_serving:
            return
        self._cluster.note(f"a flush of {machine.name} will fail")
        machine.disk.fail_next("sync", after=self._random.randint(0, FLUSHES_BEFORE_MAX))

    def _jump_clock(self) -> None:
        machine = self._machine()
        machine.clock.jumped_ms = self._random.randint(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)
        self._cluster.note(f"the clock of {machine.name} is wrong by {machine.clock.jumped_ms / 60_000:.0f} minutes")
