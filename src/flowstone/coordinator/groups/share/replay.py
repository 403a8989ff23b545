"""Applies the stored records of share groups: those just appended, or some read while loading.

Tombstones of what is unknown are ignored: compaction may have removed what came before them.
"""

from __future__ import annotations

from flowstone.coordinator.groups.config import PARTITION_OVERHEAD_BYTES, TEXT_CHARACTER_BYTES
from flowstone.coordinator.groups.share.group import NEW_GROUP_EPOCH, ShareGroup, ShareMember, TopicStates
from flowstone.coordinator.groups.share_records import (
    ShareGroupRecord,
    ShareGroupStored,
    ShareKeyType,
    ShareMemberCurrentStored,
    ShareMemberStored,
    ShareMemberTargetStored,
    ShareRecordRemoved,
    ShareStatesStored,
    ShareTargetStored,
    TopicState,
)
from flowstone.coordinator.groups.state import ShardState
from flowstone.coordinator.groups.timers import Timer, TimerKind


def replay(state: ShardState, record: ShareGroupRecord) -> None:
    if isinstance(record, ShareRecordRemoved):
        _remove(state, record)
        return
    group = state.groups.get(record.group_id)
    if not isinstance(group, ShareGroup):
        group = state.groups[record.group_id] = ShareGroup(record.group_id)
    match record:
        case ShareMemberStored():
            group.store_member(record)
        case ShareGroupStored():
            group.epoch, group.metadata_hash = record.epoch, record.metadata_hash
        case ShareTargetStored():
            group.assignment_epoch, group.assignment_timestamp_ms = record.assignment_epoch, record.timestamp_ms
        case ShareMemberTargetStored():
            group.assign(_member(group, record.member_id), target=record.partitions)
        case ShareMemberCurrentStored():
            member = _member(group, record.member_id)
            member.epoch, member.previous_epoch = record.member_epoch, record.previous_member_epoch
            group.assign(member, assigned=record.partitions)
        case ShareStatesStored():
            group.initializing, group.initialized = _states(record.initializing), _states(record.initialized)
            group.deleting = dict(record.deleting)
            _count_states(group)


def _remove(state: ShardState, record: ShareRecordRemoved) -> None:
    group = state.groups.get(record.group_id)
    if not isinstance(group, ShareGroup):
        return
    member = group.members_by_id.get(record.member_id)
    match record.key:
        case ShareKeyType.MEMBER:
            group.remove_member(record.member_id)
            state.timers.cancel(Timer(TimerKind.SESSION, record.group_id, record.member_id))
        case ShareKeyType.GROUP:
            del state.groups[record.group_id]
        case ShareKeyType.TARGET:
            group.assignment_epoch, group.assignment_timestamp_ms = NEW_GROUP_EPOCH, 0
        case ShareKeyType.MEMBER_TARGET if member is not None:
            group.assign(member, target={})
        case ShareKeyType.MEMBER_CURRENT if member is not None:
            member.epoch, member.previous_epoch = 0, 0
            group.assign(member, assigned={})
        case ShareKeyType.STATES:
            group.initializing, group.initialized, group.deleting = {}, {}, {}
            _count_states(group)


def _member(group: ShareGroup, member_id: str) -> ShareMember:
    """Return the member, made without a subscription if it is only named by an assignment so far."""
    if member_id not in group.members_by_id:
        group.store_member(ShareMemberStored(group.group_id, member_id, None, "", "", ()))
    return group.members_by_id[member_id]


def _states(topics: tuple[TopicState, ...]) -> TopicStates:
    return {topic.topic_id: (topic.name, frozenset(topic.partitions)) for topic in topics}


def _count_states(group: ShareGroup) -> None:
    group.states_revision += 1
    states = (*group.initializing.values(), *group.initialized.values())
    names = sum(len(name) for name, _ in states) + sum(map(len, group.deleting.values()))
    partitions = sum(len(indexes) for _, indexes in states)
    group.states_bytes = TEXT_CHARACTER_BYTES * names + PARTITION_OVERHEAD_BYTES * partitions
