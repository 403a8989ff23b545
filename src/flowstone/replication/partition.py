"""One replica of a partition, as leader or as follower.

The high watermark is the end of what consumers may see and of what acks=all has promised. A leader's is the lowest
position in the ISR (`in_sync`); its own position is the flushed end of the log with `flush.messages=1`, so that nothing
a power cut could take back is ever shown (D5), and the log's end above that. A follower's is what its leader told, as
far as its own position reaches. It never goes back, but where an unclean election took records away.

Which of the two it is the cluster decides (`update`). With each leader epoch all that was waited for is over: records
that are not committed yet may never be. A leader that others could replace needs a lease for each record it takes and
for each move of the high watermark (R7). One that has the only replica, and nobody to replace it, is spared all that.
"""

from __future__ import annotations

from collections.abc import Container

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.partition_log import Appended, LogSlice, PartitionLog, Timestamps
from flowstone.log.partition.producer_state import SequenceGap
from flowstone.ports.clock import Timer
from flowstone.replication.divergence import find_divergence
from flowstone.replication.following import FollowingReplica
from flowstone.replication.in_sync import InSyncReplicas
from flowstone.replication.replica import OnFault, OnReached, Watcher, add_waiter, answer_all, answer_reached
from flowstone.replication.services import Flushing, ReplicaServices
from flowstone.replication.state import DivergingEpoch, PartitionState, ReplicaFetch
from flowstone.types import Bytes
from flowstone.wire.record_batch import parse_header

__all__ = ["ACKS_ALL", "OnReached", "Partition", "Watcher"]

ACKS_ALL = -1
NO_PARTITION_EPOCH = -1
# For so long a gap in a producer's sequence is put down to a refusal. Requests that were sent together come together.
GAP_AFTER_REFUSAL_S = 1.0


class Partition(FollowingReplica):
    __slots__ = (
        "_holding",
        "_in_sync",
        "_is_alone",
        "_isr_count",
        "_refused",
        "isr",
        "partition_epoch",
        "replicas",
    )

    def __init__(
        self,
        log: PartitionLog,
        flusher: Flushing,
        state: PartitionState,
        node_id: int,
        services: ReplicaServices | None = None,
        on_fault: OnFault = lambda log, fault: None,
    ) -> None:
        """`services`: None where no other broker has a replica of anything."""
        super().__init__(log, flusher, services, on_fault)
        self._in_sync: InSyncReplicas | None = None  # of a leader that is not alone
        self._holding: Timer | None = None  # runs while the high watermark is held back for a follower that may join
        # The last time, and why. Before it was here its broker did not know it.
        self._refused: tuple[float, ErrorCode] | None = None
        self._note_refusal(ErrorCode.LEADER_NOT_AVAILABLE)
        self.partition_epoch = NO_PARTITION_EPOCH
        self.update(state, node_id)

    # What the cluster decides

    def update(self, state: PartitionState, node_id: int) -> None:
        """Takes up a decision of the cluster: a newer one than the last, or the same."""
        assert state.leader_epoch >= self.leader_epoch
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if not is_new_epoch and state.partition_epoch == self.partition_epoch:
            return  # a proposal to change it may be under way
        self.leader_id, self.leader_epoch = state.leader, state.leader_epoch
        self.partition_epoch, self.replicas, self.isr = state.partition_epoch, state.replicas, state.isr
        self._isr_count = len(state.isr)
        self.is_leader = state.leader == node_id
        has_rivals = self._services is not None and not self._services.lease.is_forever
        self._is_alone = self.is_leader and state.replicas == (node_id,) and not has_rivals
        assert not self._is_alone or state.isr == state.replicas  # so it never has too few replicas either
        if is_new_epoch:
            self._begin_epoch()
        self._update_in_sync(state, node_id)
        self._move_high_watermark()
        self._release_under_replicated()

    @property
    def min_insync_replicas(self) -> int:
        """What the topic asks for, but no more than it has replicas, as in Kafka: else nobody could write to it."""
        return min(self.log.config.min_insync_replicas, len(self.replicas))

    def _release_under_replicated(self) -> None:
        """With too few replicas nothing will be committed: who waits for it should try again."""
        if self._isr_count < self.min_insync_replicas:
            answer_all(self._uncommitted, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def _begin_epoch(self) -> None:
        self._in_sync = None
        self._stop_holding()
        self._leader_high_watermark = 0
        self._ends.clear()
        self.epoch_start_offset = self.log.end.offset
        self._release(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _update_in_sync(self, state: PartitionState, node_id: int) -> None:
        if not self.is_leader or self._is_alone:
            self._in_sync = None
            return
        services = self._cluster
        if self._in_sync is None:
            self._in_sync = InSyncReplicas(
                node_id, state, self.epoch_start_offset, services.lag_time_max_s, services.monotonic()
            )
        else:
            self._in_sync.decided(state, services.monotonic())

    def isr_change_failed(self, partition_epoch: int | None = None) -> None:
        """What was proposed is not decided, and will not be; a later look may propose it again.

        `partition_epoch` is the one it was proposed at: since then there may have been a decision, and a new proposal,
        of which this says nothing. Where it is not known what became of it nothing must be said: it counts as under
        way until the next `update`.
        """
        if self._in_sync is not None and partition_epoch in (None, self.partition_epoch):
            self._in_sync.refused()
            self._move_high_watermark()

    def check_in_sync(self) -> None:
        """For a timer: proposes an ISR without followers that lag, and with those that have caught up."""
        if self._in_sync is None or self.fault is not None or not self._cluster.lease.holds():
            return
        now_s = self._cluster.monotonic()
        due = self._in_sync.due_change(self.high_watermark.offset, self.log.end.offset, now_s)
        if due is not None:
            self._in_sync.propose(due)
            self._cluster.on_isr_change(self, due)

    @property
    def is_high_watermark_current(self) -> bool:
        """Not yet, while a new leader may not know all that the one before has committed (KIP-207)."""
        return self.high_watermark.offset >= self.epoch_start_offset

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Fences clients that know an older leader epoch than ours, or a newer one."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # Leading

    def append(self, records: Bytes, acks: int, *, is_own: bool = False, opened: Timestamps | None = None) -> Appended:
        """Append one batch, from a client or of our own, which is not checked again.

        Raises ApiError if it is refused, and NeedsWorker if it must be opened by a worker first, whose findings are
        `opened` then; nothing is written in both cases.
        """
        if self.fault is not None or self._closed_with is not None:
            self.check_serving()
        is_alone, log = self._is_alone, self.log
        if not is_alone:
            self._check_may_append(acks)
            if self._refused is not None and not is_own:
                self._check_beginning(records)
        try:
            appended = log.append(records, leader_epoch=self.leader_epoch, is_own=is_own, opened=opened)
        except StorageFault as fault:
            raise self._failed(fault) from fault
        except ApiError as error:
            self._note_full(error)
            raise self._explain(error) from None
        if self._is_full:
            self._note_room()
        if not appended.duplicate:
            is_flushed = log.config.flush_messages == 1
            if is_flushed:
                self._flusher.request(log)
            else:
                self._flusher.appended(log, appended.last_offset - appended.base_offset + 1)
            if not is_alone:
                self._appended(len(records))
            elif not is_flushed:
                self._advance(log.end)
        return appended

    def _note_full(self, error: ApiError) -> None:
        super()._note_full(error)
        if self._services is not None and error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._services.on_full(self)

    def _check_may_append(self, acks: int) -> None:
        error = self._why_not_leading()
        least = self.min_insync_replicas
        if error is None and acks == ACKS_ALL and self._isr_count < least:
            told = f"{self._isr_count} in-sync replicas, min.insync.replicas asks for {least}"
            error = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, told)
        if error is not None:
            self._note_refusal(error.code)
            raise error

    def _note_refusal(self, code: ErrorCode) -> None:
        if self._services is not None:
            self._refused = (self._services.monotonic(), code)

    def _why_not_leading(self) -> ApiError | None:
        if not self.is_leader:
            return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.leader_id} leads {self.topic_partition}")
        if not self._cluster.lease.holds():
            return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker has lost touch with its cluster")
        return None

    def _explain(self, error: ApiError) -> ApiError:
        """A gap in a producer's sequence may be our own doing: one of its requests was refused, the next came in time.

        Then it hears of the refusal again and repeats both, in order. Told of a gap, librdkafka would take a new
        producer epoch and write again what it had not heard of yet, even if that had been written.
        """
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._note_refusal(error.code)
        if self._refused is None or not isinstance(error, SequenceGap):
            return error
        refused_s, code = self._refused
        if self._cluster.monotonic() - refused_s >= GAP_AFTER_REFUSAL_S:
            return error
        return ApiError(code, "a request that was sent before this one has just been refused")

    def _check_beginning(self, records: Bytes) -> None:
        """A producer that the log does not know may begin anywhere, but not with what follows on a refusal.

        Else the first of its requests would be refused, the second taken, and the first never again.
        """
        assert self._refused is not None
        refused_s, code = self._refused
        if self._cluster.monotonic() - refused_s >= GAP_AFTER_REFUSAL_S:
            self._refused = None
            return
        header = parse_header(records)
        if header.producer_id >= 0 and header.base_sequence > 0 and self.log.producers.get(header.producer_id) is None:
            raise ApiError(code, "a request that was sent before this one has just been refused")

    def _appended(self, size_bytes: int) -> None:
        self._remember_end(self.log.end)
        if self.log.config.flush_messages > 1:
            self._move_high_watermark()
        for watcher in tuple(self._end_watchers):
            watcher.advanced(size_bytes)

    @property
    def holds_lease(self) -> bool:
        """Whether nobody else can lead it now: what is committed here is all that is committed."""
        return self._is_alone or (self.is_leader and self._cluster.lease.holds())

    def when_committed(self, offset: int, callback: OnReached, leader_epoch: int | None = None) -> None:
        """Calls back when everything below `offset` is committed: at once, or later in order.

        `leader_epoch` is the one that it was appended in, if time has passed since: in another it may be gone.
        """
        if not self.is_leader or (leader_epoch is not None and leader_epoch != self.leader_epoch):
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif offset <= self.high_watermark.offset:
            callback(ErrorCode.NONE)
        elif self.fault is not None or self._closed_with is not None:
            callback(self._closed_with or ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._uncommitted = add_waiter(self._uncommitted, offset, callback)

    def read_as_replica(
        self, fetch: ReplicaFetch, max_bytes: int, *, at_least_one: bool
    ) -> LogSlice | DivergingEpoch | None:
        """Bytes up to the log's end for a follower, whose position is noted; or where its log is not the leader's.

        None if it has all there is. May raise NotCached.
        """
        self.check_serving()
        self.check_epoch(fetch.current_leader_epoch)
        if self._in_sync is None:
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {fetch.replica_id} has nothing to replicate here",
            )
        self._in_sync.check(fetch.replica_id, fetch.replica_epoch)
        log = self.log
        if fetch.fetch_offset >= log.log_start_offset:  # else the read says so
            diverging = find_divergence(log.epochs, log.end.offset, fetch.fetch_offset, fetch.last_fetched_epoch)
            if diverging is not None:
                return diverging
        try:
            records = log.read(fetch.fetch_offset, max_bytes, log.end, at_least_one=at_least_one)
        except StorageFault as fault:
            raise self._failed(fault) from fault
        self._note_fetched(self._in_sync, fetch)
        return records

    def _note_fetched(self, in_sync: InSyncReplicas, fetch: ReplicaFetch) -> None:
        now_s, end_offset = self._cluster.monotonic(), self.log.end.offset
        in_sync.fetched(
            fetch.replica_id,
            fetch.replica_epoch,
            fetch.fetch_offset,
            end_offset,
            now_s,
            is_repeated=fetch.is_repeated,
        )
        in_sync.log_starts_at(fetch.replica_id, fetch.log_start_offset)
        self._move_high_watermark()
        if fetch.replica_id not in self.isr:
            self.check_in_sync()

    def low_watermark(self, live: Container[int]) -> int:
        """The lowest offset that any of the live replicas has, as far as they have told this leader; else -1."""
        own = self.log.log_start_offset
        return own if self._in_sync is None else self._in_sync.low_watermark(own, live)

    def log_start_moved(self) -> None:
        """Followers wait for more records, and should hear of this at once."""
        for watcher in tuple(self._end_watchers):
            watcher.interrupted()

    # The high watermark

    def flushed(self) -> None:
        """More of the log is on disk."""
        if self.fault is not None or self.log.config.flush_messages > 1:
            return
        if self._is_alone:
            self._advance(self.log.flushed_end)
        else:
            self._move_high_watermark()
        if self._unflushed:
            answer_reached(self._unflushed, self.log.flushed_end.offset)

    def configured(self) -> None:
        """The topic's settings changed; what waited under the old ones may be due now."""
        if self.log.config.flush_messages == 1:
            self._flusher.request(self.log)
        self._move_high_watermark()
        answer_reached(self._unflushed, self.position.offset)
        self._release_under_replicated()

    def look_again(self) -> None:
        """Move the high watermark as far as it may now go: the lease is back, or a broker it waited for is gone."""
        self._move_high_watermark()

    def close(self, code: ErrorCode) -> None:
        super().close(code)
        self._stop_holding()

    def _move_high_watermark(self) -> None:
        """As far as the rules allow."""
        if not self.is_leader:
            super()._move_high_watermark()
        elif self._in_sync is None:
            self._commit(self.position.offset)
        elif self._cluster.lease.holds():
            minimum, now_s = self.log.config.min_insync_replicas, self._cluster.monotonic()
            own, is_eligible = self.position.offset, self._cluster.is_eligible
            committed = self._in_sync.high_watermark(own, minimum, now_s, is_eligible)
            self._hold_until(self._in_sync.held_until_s, now_s)
            if committed is not None:
                self._commit(committed)

    def _hold_until(self, until_s: float | None, now_s: float) -> None:
        """Have the high watermark looked at again at `until_s`, by a timer of which there is one at a time."""
        if until_s is None:
            self._stop_holding()
        elif self._holding is None and not self.is_closed:
            self._holding = self._cluster.call_later(until_s - now_s, self._held)

    def _held(self) -> None:
        self._holding = None
        if self.fault is None:
            self._move_high_watermark()

    def _stop_holding(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
