"""Removal of expired offsets (`offsets.retention.minutes`), of deleted topics' offsets, and of groups without either.

- A group without members: its offsets expire that long after it became empty.
- A group that no member ever joined (stand-alone consumers): each offset that long after it was committed.
- A Stable consumer group: the same, for topics that no member subscribes to any more.
- An offset with a retention time of its client: when that is over, in the same three cases.
- An offset of a partition for which a newer one is pending in an open transaction: not before that transaction ends.
- An offset of a topic that does not exist, when the shard was just loaded: the topic may have been deleted while no
  broker hosted the shard, and a later topic of that name must not find the offset.
- A group without members and offsets, pending ones included: removed a minute after it became empty
  (`EMPTY_GROUP_KEPT_MS`).

Offsets expire by a steady clock, which does not follow a machine's clock that jumped ahead (`ShardState`).

Checks run in slices, because a shard may hold millions of offsets: the one for deleted topics once, after loading, the
one of all offsets at an interval. A check in between examines only groups without offsets; it runs as long as there are
such groups.
"""

from __future__ import annotations

from enum import Enum

from flowstone.coordinator.groups.config import EMPTY_GROUP_KEPT_MS, EXPIRY_OFFSETS_PER_TICK, EXPIRY_PAUSE_MS
from flowstone.coordinator.groups.group import AnyGroup
from flowstone.coordinator.groups.records import NO_TIMESTAMP, OffsetCommitted, OffsetRemoved
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import EXPIRY_TIMER


class _Check(Enum):
    """The kinds of checks, of which one runs at a time."""

    DELETED_TOPICS = 1
    ALL_OFFSETS = 2
    EMPTY_GROUPS = 3


class Expiry:
    """The progress of the running check, and the time of the next one. Soft state: a reload starts over."""

    def __init__(self) -> None:
        self._unchecked: list[str] = []
        self._kind = _Check.EMPTY_GROUPS
        self._finds_young = False  # whether an empty group was found that is not due yet
        self._offsets_due_ms = 0

    def schedule(self, turn: Turn) -> None:
        """Schedule the first checks of a shard that was just loaded."""
        self._offsets_due_ms = turn.now_ms + turn.shard.config.offsets_retention_check_interval_ms
        self._kind, self._unchecked = _Check.DELETED_TOPICS, list(turn.shard.groups)
        turn.shard.timers.schedule(EXPIRY_TIMER, turn.now_ms if self._unchecked else self._offsets_due_ms)

    def check(self, turn: Turn) -> None:
        """Run one slice of a check; schedule the next slice, or the next check."""
        if not self._unchecked:
            self._begin(turn)
        budget = EXPIRY_OFFSETS_PER_TICK
        while self._unchecked and budget > 0:
            group = turn.shard.groups.get(self._unchecked.pop())
            if group is None:
                continue
            budget -= 1
            if self._kind is _Check.EMPTY_GROUPS:
                self._check_empty(turn, group)
                continue
            budget -= len(turn.shard.offsets.of_group(group.group_id))
            if self._kind is _Check.ALL_OFFSETS:
                _remove_expired(turn, group)
            else:
                self._finds_young |= _remove_of_deleted_topics(turn, group) or _has_nothing(turn, group)
        if self._unchecked:
            turn.shard.timers.schedule(EXPIRY_TIMER, turn.now_ms + EXPIRY_PAUSE_MS)
        else:
            self._end(turn)

    def _check_empty(self, turn: Turn, group: AnyGroup) -> None:
        if not _has_nothing(turn, group):
            return
        if turn.now_ms - group.state_timestamp_ms >= EMPTY_GROUP_KEPT_MS:
            turn.effects.records.extend(group.removal())
        else:
            self._finds_young = True

    def _begin(self, turn: Turn) -> None:
        self._unchecked = list(turn.shard.groups)
        self._finds_young = False
        self._kind = _Check.ALL_OFFSETS if turn.now_ms >= self._offsets_due_ms else _Check.EMPTY_GROUPS

    def _end(self, turn: Turn) -> None:
        if self._kind is _Check.ALL_OFFSETS:
            self._offsets_due_ms = turn.now_ms + turn.shard.config.offsets_retention_check_interval_ms
        turn.shard.timers.schedule(EXPIRY_TIMER, self._offsets_due_ms)
        if self._finds_young:
            turn.check_empty_groups_later()


def _has_nothing(turn: Turn, group: AnyGroup) -> bool:
    """Return whether the group has no members, no member ids handed out, and no offsets, pending ones included."""
    shard, group_id = turn.shard, group.group_id
    return group.is_unused and not shard.offsets.of_group(group_id) and not shard.pending.of_group(group_id)


def _remove_of_deleted_topics(turn: Turn, group: AnyGroup) -> bool:
    """Remove the group's offsets in partitions that do not exist; return whether there were any."""
    offsets, pending = turn.shard.offsets.of_group(group.group_id), turn.shard.pending.of_group(group.group_id)
    names = {topic for topic, _ in (*offsets, *pending)}
    counts = {name: turn.shard.topics.partition_count(name) for name in names}
    missing = [place for place in dict.fromkeys((*offsets, *pending)) if place[1] >= counts[place[0]]]
    for topic, partition in missing:
        turn.append(OffsetRemoved(group.group_id, topic, partition))
    return bool(missing)


def _remove_expired(turn: Turn, group: AnyGroup) -> None:
    offsets = turn.shard.offsets.of_group(group.group_id)
    pending = turn.shard.pending.of_group(group.group_id)
    topics_in_use, empty_since_ms = group.topics_in_use(), group.empty_since_ms
    if topics_in_use is None:
        return
    now_ms = _steady_now_ms(turn)
    expired = [
        record
        for place, record in offsets.items()
        if record.topic not in topics_in_use
        and place not in pending
        and _is_expired(turn, record, empty_since_ms, now_ms)
    ]
    for record in expired:
        turn.append(OffsetRemoved(record.group_id, record.topic, record.partition))
    if len(expired) == len(offsets) and not pending and group.is_unused:
        turn.effects.records.extend(group.removal())


def _steady_now_ms(turn: Turn) -> int:
    """Return the earlier of the shard's time and the steady time.

    The shard's time follows the machine's clock as it was when the shard was loaded. If that was days ahead, offsets
    would seem to be older by that.
    """
    steady_time_ms = turn.shard.steady_time_ms
    return turn.now_ms if steady_time_ms is None else min(turn.now_ms, steady_time_ms())


def _is_expired(turn: Turn, record: OffsetCommitted, empty_since_ms: int | None, now_ms: int) -> bool:
    if record.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= record.expire_timestamp_ms
    # Counted from when the group became empty, not from the commit: it may have been reading an idle topic until then.
    since_ms = record.commit_timestamp_ms if empty_since_ms is None else empty_since_ms
    return now_ms - since_ms >= turn.shard.config.offsets_retention_ms
