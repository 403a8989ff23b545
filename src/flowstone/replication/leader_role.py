"""The leader's role in a partition with followers, for one leader epoch: which replicas are in sync, what is committed.

The high watermark is the lowest position in the ISR (`in_sync`), the leader's own included. A leader that others could
replace needs its lease for each record it takes and for each move of the high watermark: without it another broker may
lead already. A leader that has the only replica, and cannot be replaced, has no such role (see `partition`).
"""

from __future__ import annotations

from collections.abc import Callable, Container

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import LogSlice
from flowstone.ports.clock import Timer
from flowstone.replication.divergence import find_divergence
from flowstone.replication.in_sync import InSyncReplicas, ProposedIsr
from flowstone.replication.local_replica import LocalReplica
from flowstone.replication.readers import Reader
from flowstone.replication.services import ReplicaServices
from flowstone.replication.state import DivergingEpoch, PartitionState, ReplicaFetch
from flowstone.replication.waiters import answer_all

ACKS_ALL = -1


class LeaderRole:
    __slots__ = ("_holding", "_local", "_propose", "_services", "_state", "in_sync")

    def __init__(
        self,
        local: LocalReplica,
        services: ReplicaServices,
        node_id: int,
        state: PartitionState,
        epoch_start_offset: int,
        propose: Callable[[ProposedIsr], None],
    ) -> None:
        """Create the role. `propose` asks the cluster for another ISR, as a change of the last decided state only."""
        self._local, self._services, self._propose, self._state = local, services, propose, state
        lag_time_max_s, now_s = services.lag_time_max_s, services.monotonic()
        self.in_sync = InSyncReplicas(node_id, state, epoch_start_offset, lag_time_max_s, now_s)
        self._holding: Timer | None = None  # runs while the high watermark waits for a follower that may join

    def end(self) -> None:
        """End the role: the leader epoch is over, or the partition closed."""
        self._stop_holding()

    # What the cluster decides

    def decided(self, state: PartitionState) -> None:
        """Apply a decision of the cluster in the same leader epoch."""
        self._state = state
        self.in_sync.decided(state, self._services.monotonic())

    def isr_change_failed(self, partition_epoch: int | None = None) -> None:
        """Record that a proposal will not be decided; `check_in_sync` may propose it again later.

        `partition_epoch` is the one it was proposed at: after a later decision this says nothing. If it is not known
        what became of a proposal this must not be called: the proposal counts as under way until the next decision.
        """
        if partition_epoch in (None, self._state.partition_epoch):
            self.in_sync.refused()
            self.move_high_watermark()

    def check_in_sync(self) -> None:
        """Propose an ISR without lagging followers and with those that caught up, if that is a change."""
        local, services = self._local, self._services
        if local.fault is not None or not services.lease.holds():
            return
        due = self.in_sync.due_change(local.high_watermark.offset, local.log.end.offset, services.monotonic())
        if due is not None:
            self.in_sync.propose(due)
            self._propose(due)

    # Taking records

    @property
    def holds_lease(self) -> bool:
        return self._services.lease.holds()

    @property
    def _isr_size_min(self) -> int:
        """Return the topic's `min.insync.replicas`, but no more than there are replicas, as in Kafka."""
        return min(self._local.log.config.min_insync_replicas, len(self._state.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        return len(self._state.isr) < self._isr_size_min

    def check_may_append(self, acks: int) -> None:
        """Raise ApiError if the lease has run out, or there are too few in-sync replicas for acks=all."""
        if not self._services.lease.holds():
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker cannot reach its cluster, and its lease has expired"
            )
        if acks == ACKS_ALL and self.is_under_min_isr:
            told = f"{len(self._state.isr)} in-sync replicas, min.insync.replicas asks for {self._isr_size_min}"
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, told)

    def release_under_replicated(self) -> None:
        """Answer waiting acks=all requests with a retriable error if there are too few in-sync replicas."""
        if self.is_under_min_isr:
            answer_all(self._local.uncommitted, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    # Followers

    def read(self, fetch: ReplicaFetch, max_bytes: int, *, at_least_one: bool) -> LogSlice | DivergingEpoch | None:
        """Return bytes up to the log's end for a follower, and note its position; None if it has everything.

        Returns the point of divergence if the follower's log is not a prefix of this one. Raises NotCached, and
        ApiError if it is no follower or the offset is out of range.
        """
        self.in_sync.check(fetch.replica_id, fetch.replica_epoch)
        local, log = self._local, self._local.log
        if fetch.fetch_offset >= log.log_start_offset:  # otherwise the read raises OFFSET_OUT_OF_RANGE
            diverging = find_divergence(log.epochs, log.end.offset, fetch.fetch_offset, fetch.last_fetched_epoch)
            if diverging is not None:
                return diverging
        records = local.read_as(Reader.REPLICA, fetch.fetch_offset, max_bytes, at_least_one=at_least_one)
        self._note_fetched(fetch)
        return records

    def _note_fetched(self, fetch: ReplicaFetch) -> None:
        self.in_sync.fetched(
            fetch.replica_id,
            fetch.replica_epoch,
            fetch.fetch_offset,
            self._local.log.end.offset,
            self._services.monotonic(),
            is_repeated=fetch.is_repeated,
        )
        self.in_sync.log_starts_at(fetch.replica_id, fetch.log_start_offset)
        self.move_high_watermark()
        if fetch.replica_id not in self._state.isr:
            self.check_in_sync()

    def low_watermark(self, live: Container[int]) -> int:
        """Return the lowest offset that any of the live replicas has; -1 while one of them is unknown."""
        return self.in_sync.low_watermark(self._local.log.log_start_offset, live)

    # The high watermark

    def move_high_watermark(self) -> None:
        """Move the high watermark to where the in-sync replicas are, while the lease holds."""
        local, services = self._local, self._services
        if not services.lease.holds():
            return
        minimum, now_s = local.log.config.min_insync_replicas, services.monotonic()
        committed = self.in_sync.high_watermark(local.position.offset, minimum, now_s, services.is_eligible)
        self._hold_until(self.in_sync.held_until_s, now_s)
        if committed is not None:
            local.commit(committed)

    def _hold_until(self, until_s: float | None, now_s: float) -> None:
        """Schedule another check of the high watermark at `until_s`, with at most one timer at a time."""
        if until_s is None:
            self._stop_holding()
        elif self._holding is None and not self._local.is_closed:
            self._holding = self._services.call_later(until_s - now_s, self._held)

    def _held(self) -> None:
        self._holding = None
        if self._local.fault is None:
            self.move_high_watermark()

    def _stop_holding(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
