"""Old offsets go, and groups that have nothing left go with them, as `offsets.retention.minutes` says.

- A group without members: its offsets expire that long after it became empty.
- A group nobody ever joined (stand-alone consumers): each offset that long after it was committed.
- A Stable consumer group: the same, for topics nobody in it subscribes to any more.
- A client that gave a retention time of its own: when that is over, in the same three cases.

The check runs at an interval and in slices, for a shard may hold millions of offsets.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowstone.coordinator.groups.config import EXPIRY_OFFSETS_PER_TICK, EXPIRY_PAUSE_MS
from flowstone.coordinator.groups.group import Group, GroupState
from flowstone.coordinator.groups.records import NO_TIMESTAMP, GroupRemoved, OffsetCommitted, OffsetRemoved
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import Timer, TimerKind

_TIMER = Timer(TimerKind.EXPIRY)


class Expiry:
    """Where the check has got to. Soft state: after a reload it starts over."""

    def __init__(self) -> None:
        self._unchecked: list[str] = []

    def schedule(self, turn: Turn) -> None:
        turn.shard.timers.schedule(_TIMER, turn.now_ms + turn.config.offsets_retention_check_interval_ms)

    def check(self, turn: Turn) -> None:
        """One slice of a check; schedules the next slice, or the next check."""
        if not self._unchecked:
            self._unchecked = list(turn.shard.groups)
        budget = EXPIRY_OFFSETS_PER_TICK
        while self._unchecked and budget > 0:
            group = turn.shard.groups.get(self._unchecked.pop())
            if group is not None:
                budget -= 1 + len(turn.shard.offsets.of_group(group.group_id))
                _check_group(turn, group)
        if self._unchecked:
            turn.shard.timers.schedule(_TIMER, turn.now_ms + EXPIRY_PAUSE_MS)
        else:
            self.schedule(turn)


def _check_group(turn: Turn, group: Group) -> None:
    offsets = turn.shard.offsets.of_group(group.group_id)
    expired = [record for record in _expirable(turn, group) if _is_expired(turn, group, record)]
    for record in expired:
        turn.append(OffsetRemoved(record.group_id, record.topic, record.partition))
    if len(expired) == len(offsets) and group.state is GroupState.EMPTY and not group.pending_joins:
        turn.append(GroupRemoved(group.group_id))


def _expirable(turn: Turn, group: Group) -> Iterator[OffsetCommitted]:
    records = turn.shard.offsets.of_group(group.group_id).values()
    if group.state is GroupState.EMPTY:
        yield from records
    elif group.state is GroupState.STABLE:
        topics = group.subscribed_topics()
        if topics is not None:
            yield from (record for record in records if record.topic not in topics)


def _is_expired(turn: Turn, group: Group, record: OffsetCommitted) -> bool:
    if record.expire_timestamp_ms != NO_TIMESTAMP:
        return turn.now_ms >= record.expire_timestamp_ms
    since_ms = record.commit_timestamp_ms
    if group.state is GroupState.EMPTY and group.protocol_type is not None:
        # Not from the commit on: a group may have been reading an idle topic until a moment ago.
        since_ms = group.state_timestamp_ms if group.state_timestamp_ms != NO_TIMESTAMP else since_ms
    return turn.now_ms - since_ms >= turn.config.offsets_retention_ms
