"""The state machine of one `__consumer_offsets` partition, GroupShard: all its groups and offsets.

Pure and synchronous. Every request method takes the time, an opaque token and a request, and returns `Effects`: the
records to append and the replies that are due, each with the token its request came with. A join or a sync may be
answered by a later call; every token is answered exactly once, unless the shard is discarded before.

What the runtime must do:
- call `replay` with each record of the effects right after the call that returned them, before any other call;
- hold replies back until everything appended so far is committed; on a failed append, fail all waiting requests,
  discard this shard and replay the log into a new one;
- call `tick` at `next_deadline` (read again after every call) or a little later;
- while loading: `replay` every record of the partition, then `loaded` once, then serve.

`now_ms` is milliseconds since the epoch from a steady source (wall clock at start plus monotonic time since): it stamps
records and it measures sessions, and a wall clock that jumps must not expire sessions.

Hard state changes in `replay` and `replay_marker` only: committed offsets, also those of transactions still open; that
a group is Stable or Empty; its members' assignments; that a stored group was removed. Soft state is in memory only and
lost with the shard: parked joins and syncs, sessions, the generation under way until its assignment is stored, the
reason of the last rebalance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flowstone.config import GroupSettings
from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups import administration, branching, commits, transactional_commits
from flowstone.coordinator.groups.branching import BranchOffsetsRequest
from flowstone.coordinator.groups.classic import joining, membership, timeouts
from flowstone.coordinator.groups.classic.group import Group, as_classic
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.consumer import administration as consumer_administration
from flowstone.coordinator.groups.consumer import classic_members, conversion
from flowstone.coordinator.groups.consumer import commits as consumer_commits
from flowstone.coordinator.groups.consumer import heartbeat as consumer_heartbeat
from flowstone.coordinator.groups.consumer import replay as consumer_replay
from flowstone.coordinator.groups.consumer import sessions as consumer_sessions
from flowstone.coordinator.groups.consumer import timeouts as consumer_timeouts
from flowstone.coordinator.groups.consumer.group import ConsumerGroup
from flowstone.coordinator.groups.consumer.messages import ConsumerHeartbeatRequest
from flowstone.coordinator.groups.consumer_records import ConsumerRecord
from flowstone.coordinator.groups.expiry import Expiry
from flowstone.coordinator.groups.messages import (
    CommitRequest,
    CommitResponse,
    DeleteOffsetsRequest,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    ListGroupsRequest,
    SyncRequest,
)
from flowstone.coordinator.groups.records import (
    GroupRecord,
    GroupRemoved,
    GroupStored,
    OffsetCommitted,
    OffsetRemoved,
)
from flowstone.coordinator.groups.share import administration as share_administration
from flowstone.coordinator.groups.share import heartbeat as share_heartbeat
from flowstone.coordinator.groups.share import offsets as share_offsets
from flowstone.coordinator.groups.share import removal
from flowstone.coordinator.groups.share import replay as share_replay
from flowstone.coordinator.groups.share import states as share_states
from flowstone.coordinator.groups.share.group import ShareGroup
from flowstone.coordinator.groups.share.messages import ShareHeartbeatRequest
from flowstone.coordinator.groups.share_records import TopicPartitions
from flowstone.coordinator.groups.state import GroupEffects, ShardState, Turn
from flowstone.coordinator.groups.timers import Timer, TimerKind
from flowstone.coordinator.groups.topics import Topics
from flowstone.coordinator.groups.transactional_commits import EndTransactionRequest, TransactionalCommitRequest
from flowstone.errors import ErrorCode
from flowstone.memory_budget import MemoryAccount, MemoryBudget
from flowstone.types import TopicPartition
from flowstone.wire.end_markers import EndMarker


class GroupShard:
    def __init__(
        self,
        config: GroupConfig,
        new_member_id: Callable[[str], str],
        budget: MemoryBudget,
        topics: Topics,
        settings: Callable[[str], GroupSettings],
        steady_time_ms: Callable[[], int] | None = None,
    ) -> None:
        """Create an empty shard; `budget` limits the memory of all shards of the broker.

        `new_member_id` returns a unique id, given a client or instance id. `topics` are those of the cluster now,
        `settings` returns those of a group by its id. Offsets expire by `steady_time_ms` if that is the earlier time.
        """
        account = MemoryAccount(budget)
        self._state = ShardState(config, new_member_id, account, topics, settings, steady_time_ms)
        self.next_deadline = self._state.timers.next_deadline
        self._expiry = Expiry()

    def replay(self, records: Sequence[GroupRecord], producer: TransactionalProducer | None = None) -> None:
        """Apply stored records, in their order: those just appended, or some read while loading.

        Offsets of a producer's transaction are held until its marker is replayed.
        """
        pending = self._state.pending
        if self._state.applied:
            applied = {id(each) for each in self._state.applied}
            self._state.applied.clear()
            records = [each for each in records if id(each) not in applied]
        if producer is not None:
            offsets = [each for each in records if isinstance(each, OffsetCommitted)]
            pending.add(producer.producer_id, offsets)
            for group_id in {record.group_id for record in offsets}:
                if group_id not in self._state.groups:  # a group with nothing but pending offsets is known, as in Kafka
                    self._state.groups[group_id] = Group(group_id)
                self._state.measure(group_id)
            records = [each for each in records if not isinstance(each, OffsetCommitted)]
        elif pending.by_group:
            pending.drop_older(records)
        self._apply(records)

    def replay_marker(self, producer: TransactionalProducer, marker: EndMarker) -> None:
        """Apply the offsets of a transaction that was committed, and forget those of one that was aborted."""
        ended = self._state.pending.end(producer.producer_id, is_commit=marker.is_commit)
        if marker.is_commit:
            self._apply(ended)
            return
        for group_id in {record.group_id for record in ended}:
            self._state.measure(group_id)

    def _apply(self, records: Sequence[GroupRecord]) -> None:
        state, store = self._state, self._state.offsets
        group_id, offsets, has_metadata = None, {}, False
        for record in records:
            if not isinstance(
                record, OffsetCommitted
            ):  # the most common record; a match statement takes several times as long
                self._replay_other(record)
                if record.group_id != group_id and group_id is not None:
                    state.measure(group_id)
                group_id = None
                state.measure(record.group_id)
                continue
            if record[0] != group_id:
                if group_id is not None:
                    state.measure(group_id)
                group_id = record[0]
                offsets, has_metadata = store.to_change(group_id), store.has_metadata(group_id)
                if group_id not in state.groups:
                    state.groups[group_id] = Group(group_id)
            if has_metadata or record[5]:
                has_metadata = True
                before = offsets.get(record[1:3])
                store.metadata_grown(group_id, len(record[5]) - (len(before[5]) if before is not None else 0))
            offsets[record[1:3]] = record
        if group_id is not None:
            state.measure(group_id)

    def _replay_other(self, record: GroupRecord) -> None:
        groups = self._state.groups
        match record:
            case OffsetRemoved():
                self._state.offsets.remove(record)
            case GroupStored():
                as_classic(groups.setdefault(record.group_id, Group(record.group_id))).apply(record)
            case GroupRemoved():
                self._forget(record.group_id)
            case OffsetCommitted():
                raise AssertionError("commits are applied by _apply")
            case _:
                if isinstance(record, ConsumerRecord):
                    consumer_replay.replay(self._state, record)
                else:
                    share_replay.replay(self._state, record)

    def _forget(self, group_id: str) -> None:
        group = self._state.groups.get(group_id)
        if isinstance(group, Group):  # the tombstone of a former classic group may follow another kind of group
            del self._state.groups[group_id]
            timeouts.forget(self._state.timers, group)

    def loaded(self, now_ms: int) -> GroupEffects:
        """Start the sessions of all members after loading: they could not send heartbeats before."""
        turn = Turn(self._state, now_ms)
        for group in self._state.groups.values():
            if isinstance(group, ConsumerGroup):
                consumer_sessions.resume(turn, group)
            elif isinstance(group, ShareGroup):
                removal.resume(turn, group)
            else:
                timeouts.resume(turn, as_classic(group))
        self._expiry.schedule(turn)
        return turn.effects

    def join(self, now_ms: int, token: Any, request: JoinRequest) -> GroupEffects:
        turn = Turn(self._state, now_ms)
        group = self._state.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and group.is_empty:
            conversion.give_way(turn, group)
            joining.join(turn, token, request)
        elif isinstance(group, ConsumerGroup):
            classic_members.join(turn, token, group, request)
        elif isinstance(group, ShareGroup):
            turn.reply(token, JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        else:
            joining.join(turn, token, request)
        self._state.measure(request.group_id)
        return turn.effects

    def sync(self, now_ms: int, token: Any, request: SyncRequest) -> GroupEffects:
        turn = Turn(self._state, now_ms)
        if isinstance(group := self._state.groups.get(request.group_id), ConsumerGroup):
            classic_members.sync(turn, token, group, request)
        else:
            membership.sync(turn, token, request)
        self._state.measure(request.group_id)
        return turn.effects

    def heartbeat(self, now_ms: int, token: Any, request: HeartbeatRequest) -> GroupEffects:
        if isinstance(group := self._state.groups.get(request.group_id), ConsumerGroup):
            turn = Turn(self._state, now_ms)
            classic_members.heartbeat(turn, token, group, request)
            return turn.effects
        return self._run(membership.heartbeat, now_ms, token, request)

    def consumer_heartbeat(self, now_ms: int, token: Any, request: ConsumerHeartbeatRequest) -> GroupEffects:
        return self._run(consumer_heartbeat.heartbeat, now_ms, token, request)

    def describe_consumer_group(self, now_ms: int, token: Any, group_id: str) -> GroupEffects:
        return self._run(consumer_administration.describe, now_ms, token, group_id)

    def survey_group(self, now_ms: int, token: Any, group_id: str) -> GroupEffects:
        """Reply with the description that the kind of the group has; DescribedGroup for one that does not exist."""
        if isinstance(self._state.groups.get(group_id), ConsumerGroup):
            return self._run(consumer_administration.describe, now_ms, token, group_id)
        if self.is_share_group(group_id):
            return self.describe_share_group(now_ms, token, group_id)
        return self._run(administration.describe, now_ms, token, group_id)

    def task_done(self, now_ms: int, group_id: str, store: Callable[[Turn, ConsumerGroup], None]) -> GroupEffects:
        """Store the result of a consumer group's task (`consumer.regexes`, `consumer.target`) if the group exists."""
        turn = Turn(self._state, now_ms)
        if isinstance(group := self._state.groups.get(group_id), ConsumerGroup):
            store(turn, group)
        return turn.effects

    def leave(self, now_ms: int, token: Any, request: LeaveRequest) -> GroupEffects:
        turn = Turn(self._state, now_ms)
        if isinstance(group := self._state.groups.get(request.group_id), ConsumerGroup):
            classic_members.leave(turn, token, group, request)
        else:
            membership.leave(turn, token, request)
        self._state.measure(request.group_id)
        return turn.effects

    def commit_offsets(self, now_ms: int, token: Any, request: CommitRequest) -> GroupEffects:
        group = self._state.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and group.is_commit_outdated(request):
            return self._run(consumer_commits.commit_outdated, now_ms, token, request)
        return self._run(commits.commit, now_ms, token, request)

    def commit_in_transaction(self, now_ms: int, token: Any, request: TransactionalCommitRequest) -> GroupEffects:
        group, commit = self._state.groups.get(request.commit.group_id), request.commit
        if isinstance(group, ConsumerGroup) and group.is_commit_outdated(commit):
            turn = Turn(self._state, now_ms)
            if not consumer_commits.may_commit_all(turn, group, commit):
                turn.reply(token, CommitResponse([ErrorCode.ILLEGAL_GENERATION] * len(commit.offsets)))
                return turn.effects
        return self._run(transactional_commits.commit_in_transaction, now_ms, token, request)

    def end_transaction(self, now_ms: int, token: Any, request: EndTransactionRequest) -> GroupEffects:
        return self._run(transactional_commits.end_transaction, now_ms, token, request)

    def fetch_offsets(self, now_ms: int, token: Any, request: FetchOffsetsRequest) -> GroupEffects:
        if request.member_id is not None:
            group = self._state.groups.get(request.group_id)
            if isinstance(group, ConsumerGroup) and (
                code := group.check_fetch(request.member_id, request.member_epoch)
            ):
                turn = Turn(self._state, now_ms)
                turn.reply(token, FetchOffsetsResponse(request.group_id, {}, code))
                return turn.effects
        return self._run(commits.fetch, now_ms, token, request)

    def offsets_in(self, now_ms: int, token: Any, partition: TopicPartition) -> GroupEffects:
        return self._run(commits.offsets_in, now_ms, token, partition)

    def delete_offsets(self, now_ms: int, token: Any, request: DeleteOffsetsRequest) -> GroupEffects:
        return self._run(commits.delete, now_ms, token, request)

    def list_groups(self, now_ms: int, token: Any, request: ListGroupsRequest) -> GroupEffects:
        return self._run(administration.list_groups, now_ms, token, request)

    def describe_group(self, now_ms: int, token: Any, group_id: str) -> GroupEffects:
        return self._run(administration.describe, now_ms, token, group_id)

    def delete_groups(self, now_ms: int, token: Any, group_ids: Iterable[str]) -> GroupEffects:
        return self._run(administration.delete_groups, now_ms, token, group_ids)

    def branch_offsets(self, now_ms: int, token: Any, request: BranchOffsetsRequest) -> GroupEffects:
        return self._run(branching.branch_offsets, now_ms, token, request)

    def count_offsets(self, now_ms: int, token: Any) -> GroupEffects:
        return self._run(branching.count_offsets, now_ms, token, None)

    def share_heartbeat(self, now_ms: int, token: Any, request: ShareHeartbeatRequest) -> GroupEffects:
        return self._run(share_heartbeat.heartbeat, now_ms, token, request)

    def is_share_group(self, group_id: str) -> bool:
        return isinstance(self._state.groups.get(group_id), ShareGroup)

    def describe_share_group(self, now_ms: int, token: Any, group_id: str) -> GroupEffects:
        return self._run(share_administration.describe, now_ms, token, group_id)

    def describe_share_offsets(self, now_ms: int, token: Any, group_id: str) -> GroupEffects:
        return self._run(share_offsets.describe, now_ms, token, group_id)

    def begin_share_reset(
        self, now_ms: int, token: Any, group_id: str, topics: Mapping[str, tuple[int, ...]]
    ) -> GroupEffects:
        return self._run_with(share_offsets.begin_reset, now_ms, token, group_id, topics)

    def end_share_reset(self, now_ms: int, token: Any, group_id: str, partitions: TopicPartitions) -> GroupEffects:
        return self._run_with(share_offsets.end_reset, now_ms, token, group_id, partitions)

    def begin_share_deletion(
        self, now_ms: int, token: Any, group_id: str, topic_ids: frozenset[bytes] | None
    ) -> GroupEffects:
        return self._run_with(share_offsets.begin_deletion, now_ms, token, group_id, topic_ids)

    def end_share_deletion(self, now_ms: int, token: Any, group_id: str, topic_ids: frozenset[bytes]) -> GroupEffects:
        return self._run_with(share_offsets.end_deletion, now_ms, token, group_id, topic_ids)

    def share_states_initialized(self, now_ms: int, group_id: str, partitions: TopicPartitions) -> GroupEffects:
        """Record that the share coordinator has created the state of these partitions."""
        turn = Turn(self._state, now_ms)
        if isinstance(group := self._state.groups.get(group_id), ShareGroup):
            share_states.initialized(turn, group, partitions)
        return turn.effects

    def share_states_failed(self, now_ms: int, group_id: str) -> GroupEffects:
        """Let a later heartbeat of the group initialize the state again."""
        if isinstance(group := self._state.groups.get(group_id), ShareGroup):
            share_states.failed(group, now_ms + share_states.RETRY_MS)
        return Turn(self._state, now_ms).effects

    def remove_topics(self, now_ms: int, topic_ids: frozenset[bytes]) -> GroupEffects:
        """Remove deleted topics from the share groups that have state in them."""
        turn = Turn(self._state, now_ms)
        for group in self._state.groups.values():
            if isinstance(group, ShareGroup):
                share_states.forget_topics(turn, group, topic_ids)
        return turn.effects

    def remove_partitions(self, now_ms: int, partitions: Iterable[TopicPartition]) -> GroupEffects:
        """Remove the offsets of deleted partitions."""
        turn = Turn(self._state, now_ms)
        commits.remove_partitions(turn, partitions)
        return turn.effects

    def tick(self, now_ms: int) -> GroupEffects:
        """Handle everything that is due: sessions, ends of join and sync phases, expired offsets."""
        turn = Turn(self._state, now_ms)
        due_by_group: dict[str, list[Timer]] = {}
        for timer in self._state.timers.take_due(now_ms):
            if timer.kind is TimerKind.EXPIRY:
                self._expiry.check(turn)
            else:
                due_by_group.setdefault(timer.group_id, []).append(timer)
        for group_id, due in due_by_group.items():
            group = self._state.groups[group_id]
            if isinstance(group, ConsumerGroup):
                consumer_timeouts.expire(turn, group, due)
            elif isinstance(group, ShareGroup):
                removal.expire(turn, group, due)
            else:
                timeouts.expire(turn, as_classic(group), due)
            self._state.measure(group_id)
        return turn.effects

    def close(self) -> None:
        """Release the memory of all groups: the shard is discarded, or moves to another broker."""
        self._state.account.close()

    def _run_with(
        self, handle: Callable[[Turn, Any, str, Any], None], now_ms: int, token: Any, group_id: str, argument: Any
    ) -> GroupEffects:
        turn = Turn(self._state, now_ms)
        handle(turn, token, group_id, argument)
        return turn.effects

    def _run(self, handle: Callable[[Turn, Any, Any], None], now_ms: int, token: Any, request: Any) -> GroupEffects:
        turn = Turn(self._state, now_ms)
        handle(turn, token, request)
        return turn.effects
