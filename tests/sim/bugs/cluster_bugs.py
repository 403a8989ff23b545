"""Bugs of replication, elections, retention and groups that a cluster must not have."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from flowstone.broker.coordinators.internal_logs import PartitionInternalLog
from flowstone.cluster.decisions import elections, in_sync_changes, withdrawals
from flowstone.cluster.image.cluster_image import NO_LEADER, NO_VERSION, PartitionImage
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.memory_log import MemoryLog, SharedLog
from flowstone.coordinator.shard_log import ShardLog
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.lifecycle.steady_clock import SteadyClock
from flowstone.log.partition import replica_append
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.producers.producer_sequences import ProducerBatch
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.log.segments.partition_directory import FlushTask
from flowstone.replication import leader_role
from flowstone.replication.follower_role import FollowerRole
from flowstone.replication.in_sync import InSyncReplicas
from flowstone.replication.leader_role import LeaderRole
from flowstone.replication.lease import Lease
from flowstone.replication.partition import Partition
from flowstone.replication.replica_fetch_session import DueCut, ReplicaFetchSession
from flowstone.replication.served_partitions import Partitions
from flowstone.replication.state import DivergingEpoch
from flowstone.wire.record_batch import BatchHeader

from .bug import Bug, Patches


def acknowledge_before_replication() -> Patches:
    """What the leader has on its own disk counts as committed."""
    yield patch.object(InSyncReplicas, "high_watermark", lambda self, own, *_: own)


def skip_the_flush() -> Patches:
    """Bytes are taken for durable that nobody has asked the disk about."""
    yield patch.object(FlushTask, "run", FlushTask.replace_files)


def no_epoch_fencing() -> Patches:
    """Nobody looks at leader epochs: leaders not at fetches, followers not at answers, the cluster not at proposals."""

    def follower_role(self: Partition, leader_epoch: int) -> FollowerRole:
        self.local.check_serving()
        return self.following or FollowerRole(self.local, None, self.leader_epoch)

    yield patch.object(Partition, "check_epoch", lambda self, current_leader_epoch: None)
    yield patch.object(Partition, "follower_role", follower_role)
    yield patch.object(FollowerRole, "check_current", lambda self: self._local.check_serving())
    yield patch.object(leader_role, "find_divergence", lambda *_: None)
    yield patch.object(in_sync_changes, "_stale", lambda *_: None)


def high_watermark_from_a_non_isr_replica() -> Patches:
    """Any two copies count, in sync or not."""

    def high_watermark(self: InSyncReplicas, own: int, *_: object) -> int | None:
        positions = [each.position for each in self._followers.values() if each.position is not None]
        return min(own, max(positions)) if positions else None

    yield patch.object(InSyncReplicas, "high_watermark", high_watermark)


def truncate_by_high_watermark() -> Patches:
    """A follower of a new leader drops what it does not know to be committed, without asking (before KIP-101)."""
    take, cut_in = ReplicaFetchSession._take, dict[Partition, int]()

    def cut_first(self: ReplicaFetchSession, followed: Any, result: Any, now_s: float) -> DueCut | None:
        partition = followed.partition
        if cut_in.get(partition) == partition.leader_epoch:
            return take(self, followed, result, now_s)
        cut_in[partition] = partition.leader_epoch
        self._changed[followed.key] = followed
        return DueCut(partition, diverging=DivergingEpoch(0, 0))

    async def truncate(self: FollowerRole, diverging: DivergingEpoch) -> None:
        await self._cut(self._cutting.truncate_to, self._local.high_watermark.offset)

    yield patch.object(ReplicaFetchSession, "_take", cut_first)
    yield patch.object(FollowerRole, "truncate", truncate)


def keep_leading_after_the_lease() -> Patches:
    yield patch.object(Lease, "holds", lambda self: True)


def elect_outside_the_isr() -> Patches:
    """Any replica that is alive may lead, whatever it has; the least loaded first: who is out of sync."""

    def settle(state: PartitionImage, alive: Container[int], **_: object) -> PartitionImage:
        able = [node_id for node_id in state.replicas if node_id in alive]
        if not able:
            return replace(state, leader=NO_LEADER)
        leader = state.leader if state.leader in able else min(able, key=state.isr.__contains__)
        in_sync = tuple(node_id for node_id in able if node_id in state.isr or node_id == leader)
        return replace(state, leader=leader, isr=in_sync)

    for module in (elections, in_sync_changes, withdrawals):
        yield patch.object(module, "settle", settle)


def follower_skips_the_checksum() -> Patches:
    yield patch.object(replica_append, "checksum_matches", lambda *_: True)


def write_with_an_old_epoch() -> Patches:
    """The ensemble takes what was decided on an image that is no longer the newest."""
    refuse, compare_and_commit = MemoryLog._refuse, SharedLog.commit

    def commit(self: SharedLog, append: Any) -> bool:
        if not self._image.topics:  # a cluster must be made first
            return compare_and_commit(self, append)
        image = self._image = append.image = apply(self._image, append.records)
        for view in self._views:
            view.inbox.append(append)
        for view in list(self._views):
            view.notify(image.version)
        return True

    def refuse_what_is_not_in(self: MemoryLog, error: Exception) -> None:
        is_in = [append for append in self._under_way if append.image.version != NO_VERSION]
        self._under_way = deque(append for append in self._under_way if append not in is_in)
        refuse(self, error)
        self._under_way.extend(is_in)

    yield patch.object(SharedLog, "commit", commit)
    yield patch.object(MemoryLog, "_refuse", refuse_what_is_not_in)


def answer_before_the_commit() -> Patches:
    """A coordinator answers once its records are appended."""

    def when_committed(self: PartitionInternalLog, callback: Callable[[ErrorCode], None]) -> None:
        callback(ErrorCode.NONE)

    yield patch.object(PartitionInternalLog, "when_committed", when_committed)


def lose_group_state_at_failover() -> Patches:
    """A new coordinator begins with nothing."""

    async def load(self: ShardLog, state: Any) -> None: ...

    yield patch.object(ShardLog, "load", load)


def append_again_after_failover() -> Patches:
    """A follower keeps no account of producers: as leader it takes their repeats for new."""
    write_run, check = PartitionLog._write_run, ProducerStates.check

    def write_without_account(self: PartitionLog, *args: Any) -> None:
        with patch.object(ProducerStates, "apply", lambda *_: None):
            write_run(self, *args)

    def check_those_known(self: ProducerStates, header: BatchHeader, *rest: int) -> ProducerBatch | None:
        try:
            return check(self, header, *rest)
        except ApiError:
            return None

    yield patch.object(PartitionLog, "_write_run", write_without_account)
    yield patch.object(ProducerStates, "check", check_those_known)


def followers_delete_by_their_own_clock() -> Patches:
    """Every replica applies retention by its wall clock, as it is."""
    yield patch.object(Partitions, "leads", lambda *_: True)
    yield patch.object(SteadyClock, "time_ms", lambda self: self._clock.time_ms())


def believe_a_clock_that_jumped() -> Patches:
    """A leader applies retention by its wall clock, as it is."""
    yield patch.object(SteadyClock, "time_ms", lambda self: self._clock.time_ms())


def wait_without_a_timer() -> Patches:
    """A leader whose high watermark waits for a follower asks again with the next event only, however late that is.

    And it waits for followers that the cluster has taken out of the in-sync replicas.
    """
    yield patch.object(LeaderRole, "_hold_until", lambda *_: None)
    yield patch.object(InSyncReplicas, "_expected_isr", lambda self: set())


BUGS: dict[str, Bug] = {
    bug.plant.__name__: bug
    for bug in (
        Bug(acknowledge_before_replication, ("R4", "R8")),
        Bug(skip_the_flush, ("R4", "R8")),
        Bug(no_epoch_fencing, ("R2", "R3"), ("separate_then_kill",)),
        Bug(high_watermark_from_a_non_isr_replica, ("R4",)),
        Bug(truncate_by_high_watermark, ("R3", "R4"), ("lose_power",), first_seed=2),
        Bug(keep_leading_after_the_lease, ("R7",), ("cut_from_ensemble", "pause")),
        Bug(
            elect_outside_the_isr,
            ("R3", "R4", "lost write", "taken back", "real-time order", "refusal"),
            ("separate", "kill", "lose_power"),
            first_seed=5,
        ),
        Bug(follower_skips_the_checksum, ("R2",), ("flip_bits",)),
        Bug(
            write_with_an_old_epoch,
            ("R1", "R3", "R4", "real-time order", "refusal"),
            ("pause", "cut_from_ensemble"),
            first_seed=2,
        ),
        Bug(
            followers_delete_by_their_own_clock, ("retention", "R3", "R4", "lost write"), ("jump_clock",), first_seed=1
        ),
        Bug(believe_a_clock_that_jumped, ("retention", "R3", "R4", "lost write"), ("jump_clock", "kill"), first_seed=5),
        Bug(
            wait_without_a_timer,
            ("stall",),
            ("fail_flush", "restart", "kill_while_awaited", "kill_while_awaited"),
            first_seed=22,
        ),
        Bug(answer_before_the_commit, ("commit regression",), ("separate_then_kill",), first_seed=1),
        Bug(lose_group_state_at_failover, ("commit regression", "double owner"), ("kill", "restart"), first_seed=1),
        Bug(
            append_again_after_failover,
            ("duplicate",),
            ("separate_then_kill", "kill_after_acknowledgement"),
            first_seed=2,
        ),
    )
}
