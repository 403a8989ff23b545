"""One partition on this broker: what the cluster has decided about it, and this broker's role in it.

A `Partition` is made of three others, each of which can be used without it:

- `local` (`LocalReplica`) is this broker's copy of the records: reading, waiting, the high watermark, faults;
- `leading` (`LeaderRole`) is there while this broker leads and has followers, or could be replaced;
- `following` (`FollowerRole`) is there while another broker leads, or none.

The roles live for one leader epoch: with each new one all that was waited for is over, for records that are not
committed yet may never be. A leader that has the only replica and cannot be replaced ("alone") has no role object: its
high watermark is its own position, and nothing else is looked at when records come.
"""

from __future__ import annotations

from functools import partial

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.partition_log import Appended, LogPosition, PartitionLog, Timestamps, WrittenAhead
from flowstone.log.partition.producer_state import UNVERIFIED
from flowstone.replication.follower_role import FollowerRole
from flowstone.replication.leader_role import ACKS_ALL, LeaderRole
from flowstone.replication.local_replica import LocalReplica, OnFault
from flowstone.replication.readers import Reader
from flowstone.replication.recent_refusal import RecentRefusal
from flowstone.replication.services import Flushing, ReplicaServices
from flowstone.replication.state import NO_LEADER_EPOCH, PartitionState
from flowstone.replication.waiters import OnReached, Watcher, add_waiter
from flowstone.types import Bytes, TopicPartition

__all__ = ["ACKS_ALL", "OnReached", "Partition", "Watcher"]

NO_PARTITION_EPOCH = -1


class Partition:
    # With a thousand partitions an append finds little in the processor's cache: slots keep the fields close together.
    __slots__ = (
        "_flusher",
        "_is_alone",
        "_refusal",
        "_services",
        "epoch_start_offset",
        "following",
        "is_leader",
        "isr",
        "leader_epoch",
        "leader_id",
        "leading",
        "local",
        "log",
        "partition_epoch",
        "replicas",
        "topic_id",
        "topic_partition",
    )

    leader_id: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    epoch_start_offset: int

    def __init__(
        self,
        log: PartitionLog,
        flusher: Flushing,
        state: PartitionState,
        node_id: int,
        services: ReplicaServices | None = None,
        on_fault: OnFault = lambda log, fault: None,
    ) -> None:
        """Create the partition. `services` is None if no other broker has a replica of anything."""
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id: bytes = log.topic_id
        if services is None:
            self.local = LocalReplica(log, flusher, on_fault)
            self._refusal = None
        else:
            self.local = LocalReplica(log, flusher, on_fault, services.on_full)
            self._refusal = RecentRefusal(services.monotonic)
        self._flusher, self._services = flusher, services
        self.leading: LeaderRole | None = None
        self.following: FollowerRole | None = None
        self.is_leader = self._is_alone = False
        self.leader_epoch, self.partition_epoch = NO_LEADER_EPOCH, NO_PARTITION_EPOCH
        self.update(state, node_id)

    # What the cluster decides

    def update(self, state: PartitionState, node_id: int) -> None:
        """Apply a decision of the cluster: a newer one than the last, or the same again."""
        assert state.leader_epoch >= self.leader_epoch
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if not is_new_epoch and state.partition_epoch == self.partition_epoch:
            return  # a proposal to change it may be pending
        self.leader_id, self.leader_epoch = state.leader, state.leader_epoch
        self.partition_epoch, self.replicas, self.isr = state.partition_epoch, state.replicas, state.isr
        self.is_leader = state.leader == node_id
        has_rivals = self._services is not None and not self._services.lease.is_forever
        self._is_alone = self.is_leader and state.replicas == (node_id,) and not has_rivals
        assert not self._is_alone or state.isr == state.replicas  # so it never has too few replicas
        if is_new_epoch:
            self._end_roles()
            self.epoch_start_offset = self.log.end.offset
            self.local.begin_epoch()
        self._take_role(state, node_id)
        self.move_high_watermark()
        if self.leading is not None:
            self.leading.release_under_replicated()

    def _end_roles(self) -> None:
        for role in (self.leading, self.following):
            if role is not None:
                role.end()
        self.leading = self.following = None

    def _take_role(self, state: PartitionState, node_id: int) -> None:
        if self._is_alone or (self.following if self.is_leader else self.leading) is not None:
            self._end_roles()
        if self._is_alone:
            return
        if not self.is_leader:
            if self.following is None:
                logs = self._services.logs if self._services is not None else None
                self.following = FollowerRole(self.local, logs, state.leader_epoch)
        elif self.leading is not None:
            self.leading.decided(state)
        else:
            services = self._services
            assert services is not None, "a single broker's partitions have one replica"
            propose = partial(services.on_isr_change, self)
            self.leading = LeaderRole(self.local, services, node_id, state, self.epoch_start_offset, propose)

    def leader_role(self, current_leader_epoch: int) -> LeaderRole:
        """Return the role of a leader, in this epoch, that has followers. Raises ApiError if there is none."""
        self.local.check_serving()
        self.check_epoch(current_leader_epoch)
        if self.leading is None:
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise ApiError(code, "there is nothing to replicate here")
        return self.leading

    def follower_role(self, leader_epoch: int) -> FollowerRole:
        """Return the role of a follower in this leader epoch. Raises ApiError if the broker does not have it."""
        if self.following is None or leader_epoch != self.leader_epoch:
            self.local.check_serving()
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {self.leader_epoch}")
        return self.following

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise ApiError if a client knows an older leader epoch than this broker, or a newer one."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # What others ask most

    @property
    def high_watermark(self) -> LogPosition:
        return self.local.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Return the offset up to which read_committed consumers may see records."""
        return self.local.visible_end(Reader.COMMITTED)

    @property
    def fault(self) -> StorageFault | None:
        return self.local.fault

    @property
    def is_high_watermark_current(self) -> bool:
        """Return whether a new leader knows everything that the previous one has committed (KIP-207)."""
        return self.local.high_watermark.offset >= self.epoch_start_offset

    @property
    def holds_lease(self) -> bool:
        """Return whether this broker leads and no other can: what is committed here is all that is committed."""
        return self._is_alone or (self.leading is not None and self.leading.holds_lease)

    # Taking records

    def append(
        self,
        records: Bytes,
        acks: int,
        *,
        is_own: bool = False,
        opened: Timestamps | None = None,
        transaction_version: int = UNVERIFIED,
        written: WrittenAhead | None = None,
    ) -> Appended:
        """Append one batch as `PartitionLog.append` does. Raises ApiError or NeedsWorker, and writes nothing then."""
        local, log = self.local, self.log
        if local.fault is not None or local.closed_with is not None:
            local.check_serving()
        if not self._is_alone:
            self._check_may_append(records, acks, is_own=is_own)
        try:
            appended = log.append(
                records,
                leader_epoch=self.leader_epoch,
                is_own=is_own,
                opened=opened,
                transaction_version=transaction_version,
                written=written,
            )
        except StorageFault as fault:
            raise local.failed(fault) from fault
        except ApiError as error:
            local.append_refused(error)
            raise (self._refusal.explain(error) if self._refusal is not None else error) from None
        if local.is_full:
            local.append_taken()
        if not appended.duplicate:
            is_flushed = log.config.flush_messages == 1
            if is_flushed:
                self._flusher.request(log)
            else:
                self._flusher.appended(log, appended.last_offset - appended.base_offset + 1)
            if self.leading is not None:
                local.appended(len(records))
            if not is_flushed:
                self.move_high_watermark()
        return appended

    def _check_may_append(self, records: Bytes, acks: int, *, is_own: bool) -> None:
        """Raise ApiError if a broker that others could replace must not append now."""
        refusal = self._refusal
        assert refusal is not None
        try:
            if self.leading is None:
                told = f"broker {self.leader_id} leads {self.topic_partition}"
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, told)
            self.leading.check_may_append(acks)
        except ApiError as error:
            refusal.note(error.code)
            raise
        if refusal.code is not None and not is_own:
            refusal.check_first_batch(records, self.log.producers)

    def when_committed(self, offset: int, callback: OnReached, leader_epoch: int | None = None) -> None:
        """Call back once everything below `offset` is committed: at once if it is, otherwise in order of offsets.

        `leader_epoch` is the one of the append, if time has passed since: in a later epoch the records may be lost.
        """
        local = self.local
        if not self.is_leader or (leader_epoch is not None and leader_epoch != self.leader_epoch):
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif offset <= local.high_watermark.offset:
            callback(ErrorCode.NONE)
        elif local.fault is not None or local.closed_with is not None:
            callback(local.closed_with or ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            local.uncommitted = add_waiter(local.uncommitted, offset, callback)

    # The high watermark

    def flushed(self) -> None:
        """Record that more of the log has been flushed."""
        local = self.local
        if local.fault is not None or self.log.config.flush_messages > 1:
            return
        if self._is_alone:
            local.advance(self.log.flushed_end)
        else:
            self.move_high_watermark()
        if local.unflushed:
            local.position_moved()

    def configured(self) -> None:
        """Apply changed topic settings: a commit that waited under the old ones may be due now."""
        if self.log.config.flush_messages == 1:
            self._flusher.request(self.log)
        self.move_high_watermark()
        self.local.position_moved()
        if self.leading is not None:
            self.leading.release_under_replicated()

    def move_high_watermark(self) -> None:
        """Move the high watermark as far as the broker's role allows now."""
        if self.leading is not None:
            self.leading.move_high_watermark()
        elif self.following is not None:
            self.following.move_high_watermark()
        else:
            self.local.commit(self.local.position.offset)

    # Life

    def log_start_moved(self) -> None:
        """Notify readers that the log's start moved: followers should learn it at once, and transactions may have been
        removed.
        """
        self.local.interrupt_followers()
        self.local.tell_stable_readers()

    def moved(self, flusher: Flushing) -> None:
        """Take over the flusher of the log directory that the log is in now."""
        self._flusher = flusher
        self.local.moved(flusher)
        self.move_high_watermark()
        self.local.position_moved()

    def close(self, code: ErrorCode) -> None:
        """Stop serving the partition; waiting requests are answered with `code`."""
        self.local.close(code)
        self._end_roles()
