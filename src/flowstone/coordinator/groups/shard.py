"""GroupShard: all groups and offsets of one `__consumer_offsets` partition.

Pure and synchronous. Every request method takes the time, an opaque token and a request, and returns `Effects`: the
records to append and the replies that are due, each with the token its request came with. A join or a sync may be
answered by a later call; every token is answered exactly once, by `unload` at the latest.

What the runtime must do:
- call `replay` with each record of the effects right after the call that returned them, before any other call;
- hold replies back until everything appended so far is committed; on a failed append, `unload` this shard and replay
  the log into a new one;
- call `tick` at `next_deadline` (asked again after every call) or a little later;
- while loading: `replay` every record of the partition, then `loaded` once, then serve.

`now_ms` is milliseconds since the epoch from a steady source (wall clock at start plus monotonic time since): it stamps
records and it measures sessions, and a wall clock that jumps must not expire anybody.

Hard state changes in `replay` only: committed offsets; that a group is Stable or Empty; its members' assignments; that
a stored group is gone. Soft state is memory only and dies with the shard: who is joining or waiting for an assignment,
sessions, the generation under way until its assignment is stored, why the last rebalance happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flowstone.coordinator.effects import Effects
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.messages import (
    CommitRequest,
    DeleteOffsetsRequest,
    FetchOffsetsRequest,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    ListGroupsRequest,
    SyncRequest,
)
from flowstone.coordinator.groups.records import GroupRecord
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition

GroupEffects = Effects[GroupRecord]


class GroupShard:
    def __init__(self, config: GroupConfig, new_member_id: Callable[[str], str]) -> None:
        """`new_member_id` makes an id nobody else has, starting with the given client or instance id."""

    def replay(self, record: GroupRecord) -> None: ...
    def loaded(self, now_ms: int) -> GroupEffects: ...
    def unload(self, error_code: ErrorCode) -> GroupEffects: ...
    def join(self, now_ms: int, token: Any, request: JoinRequest) -> GroupEffects: ...
    def sync(self, now_ms: int, token: Any, request: SyncRequest) -> GroupEffects: ...
    def heartbeat(self, now_ms: int, token: Any, request: HeartbeatRequest) -> GroupEffects: ...
    def leave(self, now_ms: int, token: Any, request: LeaveRequest) -> GroupEffects: ...
    def commit_offsets(self, now_ms: int, token: Any, request: CommitRequest) -> GroupEffects: ...
    def fetch_offsets(self, now_ms: int, token: Any, request: FetchOffsetsRequest) -> GroupEffects: ...
    def delete_offsets(self, now_ms: int, token: Any, request: DeleteOffsetsRequest) -> GroupEffects: ...
    def list_groups(self, now_ms: int, token: Any, request: ListGroupsRequest) -> GroupEffects: ...
    def describe_group(self, now_ms: int, token: Any, group_id: str) -> GroupEffects: ...
    def delete_groups(self, now_ms: int, token: Any, group_ids: Iterable[str]) -> GroupEffects: ...
    def remove_partitions(self, now_ms: int, partitions: Iterable[TopicPartition]) -> GroupEffects: ...
    def tick(self, now_ms: int) -> GroupEffects: ...
    def next_deadline(self) -> int | None: ...
