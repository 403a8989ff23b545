"""Online migration: converts a classic group to a consumer group and back, while members continue to read.

Up: the first member of the new protocol that joins a classic group of consumers converts it. The generation becomes the
epoch of the group and of every member, which keeps what it was assigned; nobody has to stop. Members of the classic
protocol stay in the group as such (`classic_members`).

Down: when the last member of the new protocol is gone, the group becomes a classic one in a generation that is its
epoch, with the targets as assignments, and rebalances.

Each conversion is one batch of records: tombstones of the one kind, then the records of the other.
`group.consumer.migration.policy` allows both, either or neither.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowstone.coordinator.groups.classic.consumer_protocol import (
    assigned_partitions,
    encode_assignment,
    has_user_data,
    subscribed_topics,
    version_of,
)
from flowstone.coordinator.groups.classic.group import Group
from flowstone.coordinator.groups.classic.member import Member
from flowstone.coordinator.groups.classic.rebalancing import answer_join, answer_sync, rebalance
from flowstone.coordinator.groups.classic.timeouts import forget
from flowstone.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer.sessions import keep_session
from flowstone.coordinator.groups.consumer.target import topics_hash
from flowstone.coordinator.groups.consumer.writing import write, write_all
from flowstone.coordinator.groups.consumer_records import (
    ClassicMember,
    ConsumerGroupStored,
    ConsumerMemberCurrentStored,
    ConsumerMemberStored,
    ConsumerMemberTargetStored,
    ConsumerTargetStored,
    MemberState,
    Partition,
)
from flowstone.coordinator.groups.messages import JoinResponse, SyncResponse
from flowstone.coordinator.groups.records import GroupRecord
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import TimerKind
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition

# Assignors of the usual clients, whose data in assignments nobody reads: librdkafka's sticky ones return the data of
# the subscription there. (Kafka refuses to convert those groups too.)
_STANDARD_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
_UP, _DOWN = ("bidirectional", "upgrade"), ("bidirectional", "downgrade")


def upgraded(turn: Turn, group: Group) -> ConsumerGroup:
    """Convert a classic group with members. Raises ApiError, and changes nothing, if that is impossible."""
    _check_upgrade(turn, group)
    for member_id in list(group.members):
        answer_join(turn, group, member_id, JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member_id))
        answer_sync(turn, group, member_id, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
    for kind in (TimerKind.JOIN, TimerKind.SYNC):
        turn.cancel(kind, group)
    forget(turn.shard.timers, group)
    converted = ConsumerGroup(group.group_id, state_timestamp_ms=turn.now_ms)
    turn.effects.records.extend(group.removal())
    turn.shard.groups[group.group_id] = converted
    members = list(group.members.values())
    write_all(turn, [_stored_member(group.group_id, each) for each in members])
    epoch = max(group.generation, converted.epoch)
    write(turn, ConsumerGroupStored(group.group_id, epoch, topics_hash(turn, converted)))
    converted.checked_version = turn.shard.topics.version
    assigned = _assigned(turn, members)
    write_all(turn, [ConsumerMemberTargetStored(group.group_id, *each) for each in assigned.items()])
    write(turn, ConsumerTargetStored(group.group_id, epoch, turn.now_ms))
    for member_id, partitions in assigned.items():
        held = dict.fromkeys(partitions, epoch)
        write(
            turn,
            ConsumerMemberCurrentStored(group.group_id, member_id, epoch, epoch, MemberState.STABLE, held, {}),
        )
        keep_session(turn, converted, converted.members_by_id[member_id])
    return converted


def _assigned(turn: Turn, members: Iterable[Member]) -> dict[str, frozenset[Partition]]:
    """Return what each classic member was assigned; a partition that two of them name belongs to the first."""
    taken: set[Partition] = set()
    assigned = {}
    for member in members:
        partitions = frozenset(_partitions(turn, assigned_partitions(member.assignment))) - taken
        taken |= partitions
        assigned[member.member_id] = partitions
    return assigned


def _check_upgrade(turn: Turn, group: Group) -> None:
    reason = None
    if turn.shard.config.consumer_migration_policy not in _UP:
        reason = "group.consumer.migration.policy does not permit it to become one"
    elif not group.is_consumer_group:
        reason = f"its protocol type is {group.protocol_type}"
    elif len(group.members) > turn.shard.config.consumer_group_max_size:
        reason = "it has more members than group.consumer.max.size"
    else:
        for member in group.members.values():
            reason = reason or _reason_not_convertible(group, member)
    if reason is not None:
        message = f"Group {group.group_id} is not a consumer group, and {reason}."
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _reason_not_convertible(group: Group, member: Member) -> str | None:
    if any(subscribed_topics(metadata) is None for metadata in member.protocols.values()):
        return f"the subscription of member {member.member_id} cannot be read"
    try:
        if has_user_data(member.assignment) and group.protocol not in _STANDARD_ASSIGNORS:
            return f"member {member.member_id} uses an assignor with data of its own"
    except ValueError:
        return f"the assignment of member {member.member_id} cannot be read"
    return None


def _stored_member(group_id: str, member: Member) -> ConsumerMemberStored:
    protocols = tuple(member.protocols.items())
    return ConsumerMemberStored(
        group_id,
        member.member_id,
        member.group_instance_id,
        None,
        member.client_id,
        member.client_host,
        tuple(sorted(subscribed_topics(protocols[0][1]) or ())),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicMember(member.session_timeout_ms, protocols),
    )


def _partitions(turn: Turn, named: Iterable[TopicPartition]) -> list[Partition]:
    """Return the partitions that exist, with their topics' ids."""
    found = []
    for name, index in sorted(named):
        topic = turn.shard.topics.find(name)
        if topic is not None and index < topic.partition_count:
            found.append((topic.topic_id, index))
    return found


def give_way(turn: Turn, group: ConsumerGroup) -> None:
    """Remove an empty group, so that a classic one can take its name; its offsets stay."""
    write_all(turn, group.removal())
    turn.shard.groups[group.group_id] = Group(group.group_id, state_timestamp_ms=turn.now_ms)


def downgrade_if_classic(turn: Turn, group: ConsumerGroup) -> Group | None:
    """Convert the group if all of its members use the classic protocol, and have them join again.

    Members that have settled are in the group's epoch: they learn of the rebalance from a heartbeat, and keep their
    partitions until then. Return the classic group, or None if there is nothing to convert.
    """
    is_classic = group.members_by_id and group.classic_count == len(group.members_by_id)
    if not is_classic or turn.shard.config.consumer_migration_policy not in _DOWN:
        return None
    converted = Group(group.group_id, state_timestamp_ms=turn.now_ms)
    converted.generation = group.epoch
    for member in group.members_by_id.values():
        converted.add(_classic_member(turn, group, member), "consumer")
        for kind in (TimerKind.JOIN, TimerKind.SYNC):
            turn.cancel(kind, group, member.member_id)
    converted.protocol = converted.select_protocol()
    assignments = {each.member_id: each.assignment for each in converted.members.values()}
    stored = converted.stored(turn.now_ms, assignments)
    sessions = [(each.member_id, each.session_timeout_ms) for each in converted.members.values()]
    write_all(turn, group.removal())
    _write_classic(turn, stored)
    turn.shard.groups[group.group_id] = converted
    converted.apply(stored)
    for member_id, session_timeout_ms in sessions:
        turn.schedule(session_timeout_ms, TimerKind.SESSION, converted, member_id)
    rebalance(turn, converted, "The last member of the consumer protocol is gone")
    return converted


def _write_classic(turn: Turn, record: GroupRecord) -> None:
    """Append a record whose effect is already there: the runtime's replay must not undo the rebalance that follows."""
    turn.append(record)
    turn.shard.applied.append(record)


def _classic_member(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> Member:
    stored = member.stored
    assert stored.classic is not None
    protocols = dict(stored.classic.protocols)
    return Member(
        stored.member_id,
        stored.instance_id,
        stored.client_id,
        stored.client_host,
        stored.classic.session_timeout_ms,
        stored.rebalance_timeout_ms,
        protocols,
        classic_assignment(turn, member, group.target_of(stored.member_id)),
    )


def classic_assignment(turn: Turn, member: ConsumerMember, partitions: Iterable[Partition]) -> bytes:
    """Return partitions as an assignment in the version of the member's subscription."""
    assert member.stored.classic is not None
    version = version_of(member.stored.classic.protocols[0][1])
    names = ((turn.shard.topics.name_of(topic_id), index) for topic_id, index in partitions)
    return encode_assignment(version, [TopicPartition(name, index) for name, index in names if name is not None])
