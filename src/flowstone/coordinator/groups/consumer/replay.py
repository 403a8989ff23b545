"""Applies the stored records of consumer groups: those just written, or some read while loading.

Tombstones of what is unknown are ignored: compaction may have removed what came before them. Members appear with their
subscription or with an assignment, whichever the log still has first. A classic group of the same name gives way: its
members, if it had any, were stored again as members of the consumer group.
"""

from __future__ import annotations

from flowstone.coordinator.groups.classic.group import Group
from flowstone.coordinator.groups.classic.timeouts import forget
from flowstone.coordinator.groups.consumer.group import FIRST_EPOCH, ConsumerGroup
from flowstone.coordinator.groups.consumer_records import (
    ConsumerGroupStored,
    ConsumerKey,
    ConsumerMemberCurrentStored,
    ConsumerMemberStored,
    ConsumerMemberTargetStored,
    ConsumerRecord,
    ConsumerRecordRemoved,
    ConsumerRegexStored,
    ConsumerTargetStored,
)
from flowstone.coordinator.groups.state import ShardState
from flowstone.coordinator.groups.timers import Timer, TimerKind


def replay(state: ShardState, record: ConsumerRecord) -> None:
    if isinstance(record, ConsumerRecordRemoved):
        _remove(state, record)
        return
    group = state.groups.get(record.group_id)
    if not isinstance(group, ConsumerGroup):
        if isinstance(group, Group):
            forget(state.timers, group)
        group = state.groups[record.group_id] = ConsumerGroup(record.group_id)
    match record:
        case ConsumerMemberStored():
            group.store_member(record)
        case ConsumerGroupStored():
            group.epoch, group.metadata_hash = record.epoch, record.metadata_hash
        case ConsumerTargetStored():
            group.assignment_epoch, group.assignment_timestamp_ms = record.assignment_epoch, record.timestamp_ms
            group.has_partial_targets = False
        case ConsumerMemberTargetStored():
            group.targets[record.member_id] = record.partitions
            group.has_partial_targets = True
        case ConsumerMemberCurrentStored():
            group.store_current(record)
        case ConsumerRegexStored():
            group.regexes[record.regex] = record


def _remove(state: ShardState, record: ConsumerRecordRemoved) -> None:
    group = state.groups.get(record.group_id)
    if not isinstance(group, ConsumerGroup):
        return
    match record.key:
        case ConsumerKey.MEMBER:
            group.remove_member(record.name)
            for kind in (TimerKind.SESSION, TimerKind.JOIN, TimerKind.SYNC):
                state.timers.cancel(Timer(kind, record.group_id, record.name))
        case ConsumerKey.GROUP:
            del state.groups[record.group_id]
        case ConsumerKey.TARGET:
            group.assignment_epoch = FIRST_EPOCH
        case ConsumerKey.MEMBER_TARGET:
            group.targets.pop(record.name, None)
        case ConsumerKey.MEMBER_CURRENT:
            group.drop_current(record.name)
        case ConsumerKey.REGEX:
            group.regexes.pop(record.name, None)
        case ConsumerKey.PARTITION_METADATA:
            pass
