"""The state that all parts of a shard share: its groups, offsets and timers; and the context of one call.

A `Turn` is one call into the shard: its time, and the effects that it collects. At most one record is written per group
and per offset in a call, because its effect is visible only after it was replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flowstone.config import GroupSettings
from flowstone.coordinator.effects import Effects
from flowstone.coordinator.groups.config import EMPTY_GROUP_KEPT_MS, GroupConfig
from flowstone.coordinator.groups.group import AnyGroup
from flowstone.coordinator.groups.offsets import OffsetStore
from flowstone.coordinator.groups.pending_offsets import PendingOffsets
from flowstone.coordinator.groups.records import GroupRecord
from flowstone.coordinator.groups.timers import EXPIRY_TIMER, Timer, TimerKind, Timers
from flowstone.coordinator.groups.topics import Topics
from flowstone.memory_budget import MemoryAccount

GroupEffects = Effects[GroupRecord]


@dataclass(slots=True)
class ShardState:
    config: GroupConfig
    new_member_id: Callable[[str], str]
    account: MemoryAccount
    topics: Topics
    settings: Callable[[str], GroupSettings]  # of a group, by its id
    # The time by a clock that ignores jumps of the machine's clock; None if the shard's own time is to be believed.
    steady_time_ms: Callable[[], int] | None = None
    groups: dict[str, AnyGroup] = field(default_factory=dict)
    offsets: OffsetStore = field(default_factory=OffsetStore)
    pending: PendingOffsets = field(default_factory=PendingOffsets)
    timers: Timers = field(default_factory=Timers)
    # Records that the call under way has already applied: `GroupShard.replay` skips them.
    applied: list[GroupRecord] = field(default_factory=list)

    def measure(self, group_id: str) -> None:
        """Update the memory budget with the group's present size."""
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
    effects: GroupEffects = field(default_factory=Effects)  # faster than calling the generic alias

    def reply(self, token: Any, response: Any) -> None:
        self.effects.replies.append((token, response))

    def append(self, record: GroupRecord) -> None:
        self.effects.records.append(record)

    def schedule(self, delay_ms: int, kind: TimerKind, group: AnyGroup, member_id: str = "") -> None:
        self.shard.timers.schedule(Timer(kind, group.group_id, member_id), self.now_ms + delay_ms)

    def cancel(self, kind: TimerKind, group: AnyGroup, member_id: str = "") -> None:
        self.shard.timers.cancel(Timer(kind, group.group_id, member_id))

    def check_empty_groups_later(self) -> None:
        """Schedule the removal of groups without members and offsets, when one that is empty now is due."""
        due_ms, timers = self.now_ms + EMPTY_GROUP_KEPT_MS, self.shard.timers
        scheduled_ms = timers.deadline(EXPIRY_TIMER)
        if scheduled_ms is None or due_ms < scheduled_ms:
            timers.schedule(EXPIRY_TIMER, due_ms)

    def keep_session(self, group: AnyGroup, member_id: str) -> None:
        """Restart the session timeout of a member."""
        self.schedule(group.session_timeout_ms(member_id), TimerKind.SESSION, group, member_id)
