"""What must be so at every moment, whatever clients know: looked at on the disks and in the brokers themselves.

Held to RELIABILITY: one leader per partition and epoch (R1), the same bytes and the same past for the same offset and
epoch (R2), every member of the in-sync replicas has, durably, all that was ever committed (R3, R4, R5), and an
acknowledgement means as many durable copies as min.insync.replicas asks for (R8). No high watermark moves without a
lease (R7), and none stays for long where all that are in sync have told their leader that they have more. No log loses
its beginning, unless clients delete it: nothing gets old enough here. The bytes of logs that are compacted are not
looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from flowstone.log.partition.partition_log import LogPosition
from flowstone.replication.in_sync import JOIN_WAIT_S
from flowstone.replication.local_replica import LocalReplica
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition

from .cluster import SETTINGS
from .loop import running_process
from .replicas import Pasts, Replica, ReplicaLog

if TYPE_CHECKING:
    from .cluster import Cluster, Machine

# How long a high watermark may stay below what all in-sync replicas have, after a wait for a follower that may join.
STALL_S_MAX = 0.4
MIN_IN_SYNC = int(SETTINGS["min.insync.replicas"])


class Invariants:
    def __init__(
        self, cluster: Cluster, compacted_topics: frozenset[str], shortened_topics: frozenset[str] = frozenset()
    ) -> None:
        """Look at the cluster; the beginning of the shortened topics' logs may be deleted."""
        self._cluster, self._compacted_topics = cluster, compacted_topics
        self._shortened_topics = shortened_topics
        self.violations: list[str] = []
        self._replicas: dict[tuple[int, TopicPartition], Replica] = {}
        self._lost: dict[tuple[int, TopicPartition], Replica] = {}  # as they were on the disk before the present one
        # What is at an offset in an epoch: the checksum of the log up to there, and whose.
        self._found: dict[tuple[TopicPartition, int, int], tuple[int, int]] = {}
        self._pasts: dict[TopicPartition, Pasts] = {}
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self._epochs: dict[TopicPartition, int] = {}
        # What was ever committed: its end, and the checksum of what lies below.
        self._committed: dict[TopicPartition, tuple[int, int]] = {}
        # Up to where enough copies were durable when it was committed. An operator may take one away the next moment.
        self._copied: dict[TopicPartition, int] = {}
        # Leaders whose high watermark could move: where it is, and since when.
        self._stalled: dict[tuple[int, TopicPartition, int], tuple[int, float]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Looks at every move of a leader's high watermark."""
        advance = LocalReplica.advance

        def advance_and_look(local: LocalReplica, end: LogPosition) -> None:
            before = local.high_watermark.offset
            advance(local, end)
            if local.high_watermark.offset > before:
                self._moved(local)

        with patch.object(LocalReplica, "advance", advance_and_look):
            yield

    def _moved(self, local: LocalReplica) -> None:
        process = running_process()
        assert process is not None
        machine = next(each for each in self._cluster.machines if each.process is process)
        partition = machine.app.services.partitions.find(local.topic_partition) if machine.app is not None else None
        if partition is None or partition.local is not local or not partition.is_leader:
            return
        if partition.topic_partition.topic in self._compacted_topics:
            return
        if machine.lease_until_s <= self._cluster.loop.time():
            self._violated(f"R7 {partition.topic_partition}: {machine.name} commits without a lease")
        self._look_at(partition.topic_partition)
        committed = partition.high_watermark.offset
        if len(self._copies(partition.topic_partition, committed)) >= MIN_IN_SYNC:
            self._copied[partition.topic_partition] = committed

    def look(self) -> None:
        for partition in self._cluster.partitions():
            self._look_at(partition)

    def acknowledged(self, partition: TopicPartition, next_offset: int) -> None:
        """A client has heard that everything below `next_offset` is safe."""
        if partition.topic in self._compacted_topics:
            return
        self._look_at(partition)
        copies = self._copies(partition, next_offset)
        if len(copies) < MIN_IN_SYNC and next_offset > self._copied.get(partition, 0):
            self._violated(f"R8 {partition}: {next_offset - 1} was acknowledged with durable copies on {copies} only")

    def _copies(self, partition: TopicPartition, next_offset: int) -> list[int]:
        machines = self._cluster.machines
        return [each.node_id for each in machines if self._durable_end(each, partition) >= next_offset]

    def _durable_end(self, machine: Machine, partition: TopicPartition) -> int:
        """What was on a disk that is lost counts while the cluster may still go by it: it was there when it counted."""
        end = self._replica(machine.node_id, partition).durable.end_offset
        lost = self._lost.get((machine.node_id, partition))
        return max(end, lost.durable.end_offset) if lost is not None and machine.is_blank else end

    def _look_at(self, partition: TopicPartition) -> None:
        if partition.topic in self._compacted_topics:
            return
        for machine in self._cluster.machines:
            replica = self._replica(machine.node_id, partition)
            for batch in replica.written.read_on():
                past = self._found.setdefault(
                    (partition, batch.base_offset, batch.epoch), (batch.checksum, machine.node_id)
                )
                if past[0] != batch.checksum:
                    self._violated(
                        f"R2 {partition}: {batch.base_offset} of epoch {batch.epoch} has another past on "
                        f"b{machine.node_id} than on b{past[1]}"
                    )
            replica.durable.read_on()
        self._look_at_leaders(partition)
        self._look_at_in_sync(partition)

    def _look_at_leaders(self, partition: TopicPartition) -> None:
        for machine in self._cluster.machines:
            if machine.app is None or not machine.is_serving:
                continue
            found = machine.app.services.partitions.find(partition)
            if found is None or not found.is_leader:
                continue
            leader = self._leaders.setdefault((partition, found.leader_epoch), machine.node_id)
            if leader != machine.node_id:
                self._violated(f"R1 {partition}: b{leader} and b{machine.node_id} lead in epoch {found.leader_epoch}")
            self._commit(partition, machine.node_id, found.high_watermark.offset)
            self._look_for_stall(machine, found)
            if found.log.log_start_offset and partition.topic not in self._shortened_topics:
                self._violated(f"retention {partition}: {machine.name} deleted up to {found.log.log_start_offset}")

    def _look_for_stall(self, machine: Machine, found: Partition) -> None:
        leading, now_s = found.leading, self._cluster.loop.time()
        key, at = (machine.node_id, found.topic_partition, found.leader_epoch), found.high_watermark.offset
        is_able = machine.process is not None and not machine.process.is_paused and machine.lease_until_s > now_s
        if leading is None or not is_able or found.fault is not None or len(found.isr) < MIN_IN_SYNC:
            self._stalled.pop(key, None)
            return
        in_sync = leading.in_sync
        if in_sync.held_until_s is not None and now_s - in_sync.held_until_s > STALL_S_MAX:
            self._violated(f"stall {found.topic_partition}: {machine.name} does not end its wait for a follower")
        positions = [in_sync._followers[node_id].position for node_id in in_sync._maximal_isr]
        could_be = min((found.local.position.offset, *(-1 if each is None else each for each in positions)))
        if could_be <= at or self._stalled.get(key, (at,))[0] != at:
            self._stalled.pop(key, None)
        if could_be > at:
            _, since_s = self._stalled.setdefault(key, (at, now_s))
            held_until_s = min(in_sync.held_until_s or 0.0, since_s + JOIN_WAIT_S)
            if now_s - max(since_s, held_until_s) > STALL_S_MAX:
                self._violated(f"stall {found.topic_partition}: {machine.name} stays at {at}, and all have {could_be}")

    def _commit(self, partition: TopicPartition, node_id: int, high_watermark: int) -> None:
        end, checksum = self._committed.get(partition, (0, 0))
        log = self._replica(node_id, partition).written
        if high_watermark < end:
            return  # a new leader that does not know yet; what it has is looked at below
        if not _may_have(log, end, checksum):
            self._violated(f"R3 {partition}: b{node_id} leads, and what was committed below {end} is not there")
        new = log.checksum_at(high_watermark)
        if new is not None:
            self._committed[partition] = (high_watermark, new)

    def _look_at_in_sync(self, partition: TopicPartition) -> None:
        state = self._cluster.image.partition(partition)
        if state is None:
            return
        if state.leader_epoch < self._epochs.get(partition, 0):
            self._violated(f"R1 {partition}: the epoch went back to {state.leader_epoch}")
        self._epochs[partition] = state.leader_epoch
        end, checksum = self._committed.get(partition, (0, 0))
        for node_id in state.isr:
            if self._cluster.machines[node_id - 1].is_blank:
                continue
            durable = self._replica(node_id, partition).durable
            if durable.end_offset < end:
                self._violated(
                    f"R4 {partition}: {end} is committed, and b{node_id}, in sync, has {durable.end_offset} durably"
                )
            elif not _may_have(durable, end, checksum):
                self._violated(f"R3 {partition}: b{node_id}, in sync, has something else below {end}")

    def _replica(self, node_id: int, partition: TopicPartition) -> Replica:
        disk = self._cluster.machines[node_id - 1].disk
        replica = self._replicas.get((node_id, partition))
        if replica is None or replica.disk is not disk:
            if replica is not None:
                replica.durable.read_on()
                self._lost[node_id, partition] = replica
            replica = self._replicas[node_id, partition] = Replica(
                disk, SETTINGS["log.dirs"], partition, self._pasts.setdefault(partition, {})
            )
        return replica

    def describe(self) -> list[str]:
        """Every partition as the cluster has decided and as each broker sees it, for people."""
        lines = []
        for partition in self._cluster.partitions():
            state = self._cluster.image.partition(partition)
            assert state is not None
            lines.append(
                f"{partition}: b{state.leader} leads in epoch {state.leader_epoch}, in sync {state.isr}, "
                f"committed {self._committed.get(partition, (0,))[0]}"
            )
            for machine in self._cluster.machines:
                replica = self._replica(machine.node_id, partition)
                told = f"  {machine.name}: {replica.written.end_offset}, {replica.durable.end_offset} durable"
                if machine.app is not None and machine.is_serving:
                    found = machine.app.services.partitions.find(partition)
                    if found is not None:
                        told += f"; b{found.leader_id} leads in epoch {found.leader_epoch}, in sync {found.isr}"
                        told += f", high watermark {found.high_watermark.offset}, end {found.log.log_end_offset}"
                lines.append(told)
        return lines

    def _violated(self, what: str) -> None:
        if what not in self.violations:
            self.violations.append(what)
            self._cluster.note(what)


def _may_have(log: ReplicaLog, end: int, checksum: int) -> bool:
    """Whether the log has what the checksum was made of, up to `end`, or has deleted all of it."""
    return 0 < end <= log.begin_offset or log.checksum_at(end) == checksum
