"""What all parts of a shard share: its groups, its offsets, its timers; and one turn of work on them.

A `Turn` is one call into the shard: the time it happens at and the effects it collects. Within a turn at most one
record is written per group and per offset, for what it changes is seen only once it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flowstone.coordinator.effects import Effects
from flowstone.coordinator.groups.config import EMPTY_GROUP_KEPT_MS, GroupConfig
from flowstone.coordinator.groups.group import AnyGroup
from flowstone.coordinator.groups.offsets import OffsetStore
from flowstone.coordinator.groups.pending_offsets import PendingOffsets
from flowstone.coordinator.groups.records import GroupRecord
from flowstone.coordinator.groups.timers import EXPIRY_TIMER, Timer, TimerKind, Timers
from flowstone.memory_budget import MemoryAccount

GroupEffects = Effects[GroupRecord]


@dataclass(slots=True)
class ShardState:
    config: GroupConfig
    new_member_id: Callable[[str], str]
    account: MemoryAccount
    groups: dict[str, AnyGroup] = field(default_factory=dict)
    offsets: OffsetStore = field(default_factory=OffsetStore)
    pending: PendingOffsets = field(default_factory=PendingOffsets)
    timers: Timers = field(default_factory=Timers)

    def measure(self, group_id: str) -> None:
        """Tell the account what the group takes in memory now."""
        group = self.groups.get(group_id)
        group_bytes = 0 if group is None else group.size_bytes
        offsets_bytes = self.offsets.size_bytes(group_id)
        if self.pending.by_group:
            offsets_bytes += self.pending.size_bytes(group_id)
        self.account.set_size(group_id, group_bytes + offsets_bytes)


@dataclass(slots=True)
class Turn:
    shard: ShardState
    now_ms: int
    effects: GroupEffects = field(default_factory=Effects)  # the alias would look up what it stands for each time

    def reply(self, token: Any, response: Any) -> None:
        self.effects.replies.append((token, response))

    def append(self, record: GroupRecord) -> None:
        self.effects.records.append(record)

    def schedule(self, delay_ms: int, kind: TimerKind, group: AnyGroup, member_id: str = "") -> None:
        self.shard.timers.schedule(Timer(kind, group.group_id, member_id), self.now_ms + delay_ms)

    def cancel(self, kind: TimerKind, group: AnyGroup, member_id: str = "") -> None:
        self.shard.timers.cancel(Timer(kind, group.group_id, member_id))

    def check_empty_groups_later(self) -> None:
        """Have groups without members and offsets looked for when one that is empty now has been so for long enough."""
        due_ms, timers = self.now_ms + EMPTY_GROUP_KEPT_MS, self.shard.timers
        scheduled_ms = timers.deadline(EXPIRY_TIMER)
        if scheduled_ms is None or due_ms < scheduled_ms:
            timers.schedule(EXPIRY_TIMER, due_ms)

    def keep_session(self, group: AnyGroup, member_id: str) -> None:
        """Let the session of a member begin again now."""
        self.schedule(group.session_timeout_ms(member_id), TimerKind.SESSION, group, member_id)
