"""One group: its members, its generation, and its parked requests. Data and rules, without timers and replies.

States, as in Kafka:

    Empty ──join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance ──assignment stored──► Stable
      ▲                  ▲      │                                        │                                        │
      │                  └──────┼──────── a member joins, leaves, dies ──┴────────────────────────────────────────┘
      └───────stored────────────┘ nobody left

The two states on disk, Empty and Stable, are entered by `apply` only, when their record is replayed. A group that does
not exist is Dead.

Invariants: the leader is a member, or None without members; `joins`, `syncs` and `pending_syncs` contain only members;
`pending_joins` contains none; there is a protocol that all members support.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from flowstone.coordinator.groups.classic.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    assigned_partitions,
    owned_partitions,
    subscribed_topics,
)
from flowstone.coordinator.groups.classic.member import Member, pending_bytes
from flowstone.coordinator.groups.config import GROUP_OVERHEAD_BYTES, TEXT_CHARACTER_BYTES
from flowstone.coordinator.groups.group import AnyGroup
from flowstone.coordinator.groups.messages import CLASSIC, UNKNOWN_MEMBER_ID, CommitRequest, DescribedGroup
from flowstone.coordinator.groups.records import (
    NO_TIMESTAMP,
    GroupRecord,
    GroupRemoved,
    GroupStored,
    StoredMember,
)
from flowstone.errors import ErrorCode


class GroupState(Enum):
    """The states of a group; the values are shown by ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True, eq=False)
class Group:
    group_id: str
    state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = NO_TIMESTAMP
    generation: int = 0
    protocol_type: str | None = None  # None: no member ever joined, only offsets were committed
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # group instance id to member id
    pending_joins: set[str] = field(default_factory=set)  # member ids handed out and not yet used
    pending_syncs: set[str] = field(default_factory=set)  # members without a SyncGroup request in this generation
    joins: dict[str, Any] = field(default_factory=dict)  # member id to the token of its parked join
    syncs: dict[str, Any] = field(default_factory=dict)
    initial_delay_left_ms: int | None = None  # while the first rebalance of an empty group waits for more members
    joined_during_delay: bool = False
    rebalance_count: int = 0
    rebalance_reason: str = ""
    rebalance_timestamp_ms: int = NO_TIMESTAMP
    members_bytes: int = 0  # an estimate of the memory of the members and the handed out ids

    # The interface of all protocols' groups: see `groups.group.AnyGroup`

    @property
    def size_bytes(self) -> int:
        """Return an estimate of the group's memory in bytes, without its offsets."""
        return GROUP_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * len(self.group_id) + self.members_bytes

    @property
    def type(self) -> str:
        return CLASSIC

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def protocol_type_name(self) -> str:
        return self.protocol_type or ""

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        return self.state is GroupState.EMPTY and not self.pending_joins

    @property
    def empty_since_ms(self) -> int | None:
        if self.state is not GroupState.EMPTY or self.protocol_type is None or self.state_timestamp_ms == NO_TIMESTAMP:
            return None
        return self.state_timestamp_ms

    @property
    def has_deletable_offsets(self) -> bool:
        return self.state is GroupState.EMPTY or self.is_consumer_group

    def topics_in_use(self) -> frozenset[str] | None:
        if self.state is GroupState.EMPTY:
            return frozenset()
        return self.subscribed_topics() if self.state is GroupState.STABLE else None

    def session_timeout_ms(self, member_id: str) -> int:
        return self.members[member_id].session_timeout_ms

    def check_commit(self, request: CommitRequest) -> ErrorCode:
        claims_generation = request.generation_id >= 0
        if self.state is GroupState.EMPTY and not claims_generation:
            return ErrorCode.NONE
        if not claims_generation and request.member_id == UNKNOWN_MEMBER_ID and request.group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error_code = self._check_generation(request)
        if error_code is ErrorCode.NONE and self.state is GroupState.COMPLETING_REBALANCE:
            # The member has joined the new generation but has no assignment in it: it does not own what it commits.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error_code

    def check_transactional_commit(self, request: CommitRequest) -> ErrorCode:
        claims_generation = request.generation_id >= 0
        claims_member = request.member_id != UNKNOWN_MEMBER_ID or request.group_instance_id is not None
        if not claims_generation and (self.state is GroupState.EMPTY or not claims_member):
            return ErrorCode.NONE
        return self._check_generation(request)

    def _check_generation(self, request: CommitRequest) -> ErrorCode:
        error_code = self.check_member(request.member_id, request.group_instance_id)
        if error_code is ErrorCode.NONE and request.generation_id != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error_code

    def described(self) -> DescribedGroup:
        # Unless the group is Stable, the protocol of the members' metadata is not chosen yet.
        protocol = self.protocol if self.state is GroupState.STABLE else None
        return DescribedGroup(
            self.group_id,
            self.state.value,
            protocol_type=self.protocol_type or "",
            protocol=protocol or "",
            generation=self.generation,
            members=tuple(member.described(protocol) for member in self.members.values()),
            rebalance_count=self.rebalance_count,
            rebalance_reason=self.rebalance_reason,
            rebalance_timestamp_ms=self.rebalance_timestamp_ms,
        )

    def removal(self) -> Sequence[GroupRecord]:
        return (GroupRemoved(self.group_id),)

    # Members

    def count(self, member: Member) -> None:
        """Update the member's share of `members_bytes`."""
        size_bytes = member.size_bytes
        self.members_bytes += size_bytes - member.counted_bytes
        member.counted_bytes = size_bytes

    def add_pending(self, member_id: str) -> None:
        """Store a member id that was handed out."""
        self.pending_joins.add(member_id)
        self.members_bytes += pending_bytes(member_id)

    def drop_pending(self, member_id: str) -> None:
        """Drop a member id that was handed out, if it is stored."""
        if member_id in self.pending_joins:
            self.pending_joins.remove(member_id)
            self.members_bytes -= pending_bytes(member_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max([0, *(member.rebalance_timeout_ms for member in self.members.values())])

    @property
    def all_joined(self) -> bool:
        return len(self.joins) == len(self.members) and not self.pending_joins

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return NONE, or why a request's member id and instance id are refused.

        An instance id belongs to one member at a time: any other member id with it is fenced.
        """
        if group_instance_id is not None:
            owner = self.static_members.get(group_instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, protocols: Collection[str]) -> bool:
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        members = self.members.values()
        return protocol_type == self.protocol_type and any(
            all(name in member.protocols for member in members) for name in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all support.

        The earliest member's choice breaks a tie.
        """
        members = self.members.values()
        first = next(iter(members))
        candidates = {name for name in first.protocols if all(name in member.protocols for member in members)}
        assert candidates, f"group {self.group_id} has no protocol that all members support"
        preferred = (next(name for name in member.protocols if name in candidates) for member in members)
        return Counter(preferred).most_common(1)[0][0]

    def add(self, member: Member, protocol_type: str) -> None:
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        self.members[member.member_id] = member
        self.drop_pending(member.member_id)
        self.count(member)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member:
        assert member_id not in self.joins, "a member is answered before it is removed"
        assert member_id not in self.syncs, "a member is answered before it is removed"
        member = self.members.pop(member_id)
        self.members_bytes -= member.counted_bytes
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        self.pending_syncs.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename_static_member(self, old_member_id: str, new_member_id: str) -> Member:
        """Replace a static member's id after its return: it keeps its assignment and its leadership."""
        assert old_member_id not in self.joins, "a member is answered before it is replaced"
        assert old_member_id not in self.syncs, "a member is answered before it is replaced"
        member = self.members[old_member_id]
        assert member.group_instance_id is not None
        member.member_id = new_member_id
        self.static_members[member.group_instance_id] = new_member_id
        self.members = {each.member_id: each for each in self.members.values()}
        if old_member_id in self.pending_syncs:
            self.pending_syncs.remove(old_member_id)
            self.pending_syncs.add(new_member_id)
        if self.leader == old_member_id:
            self.leader = new_member_id
        return member

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined the leader; return False if none has."""
        if self.leader not in self.joins:
            joined = next((member_id for member_id in self.members if member_id in self.joins), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics of all members, or None if they are unknown: a member's metadata is not a consumer's."""
        if not self.is_consumer_group:
            return None
        topics: frozenset[str] = frozenset()
        for member in self.members.values():
            member_topics = self.topics_of(member.protocols)
            if member_topics is None:
                return None
            topics |= member_topics
        return topics

    def topics_of(self, protocols: Mapping[str, bytes]) -> frozenset[str] | None:
        """Return the topics a member subscribes to, by the chosen protocol's metadata if it has that."""
        if not self.is_consumer_group:
            return None
        chosen = protocols.get(self.protocol or "")
        return subscribed_topics(next(iter(protocols.values())) if chosen is None else chosen)

    def is_giving_up(self, member: Member) -> bool:
        """Return whether the member was told to revoke partitions, which wait for it to join again."""
        if not self.is_consumer_group or self.protocol not in member.protocols:
            return False
        return not owned_partitions(member.protocols[self.protocol]) <= assigned_partitions(member.assignment)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic, or may do so: the group's offsets are then kept."""
        topics = self.subscribed_topics()
        return topic in topics if topics is not None else self.is_consumer_group

    def stored(self, now_ms: int, assignments: Mapping[str, bytes]) -> GroupStored:
        """Return the record of this generation with these assignments; members without one get an empty one."""
        members: Iterable[StoredMember] = ()
        if self.members:
            assert self.protocol is not None
            protocol = self.protocol
            members = (each.stored(protocol, assignments.get(each.member_id, b"")) for each in self.members.values())
        return GroupStored(
            self.group_id, self.protocol_type or "", self.generation, self.protocol, self.leader, now_ms, tuple(members)
        )

    def apply(self, record: GroupStored) -> None:
        """Apply a stored record. A member that already matches its record keeps its other protocols."""
        self.state = GroupState.STABLE if record.members else GroupState.EMPTY
        self.state_timestamp_ms = record.current_state_timestamp_ms
        self.generation = record.generation
        self.protocol_type = record.protocol_type or None
        self.protocol = record.protocol
        self.leader = record.leader
        protocol = record.protocol or ""
        before = self.members
        self.members = {stored.member_id: self._applied(stored, protocol) for stored in record.members}
        self.members_bytes -= sum(member.counted_bytes for member in before.values())
        for member in self.members.values():
            member.counted_bytes = 0
            self.count(member)
        self.static_members = {
            stored.group_instance_id: stored.member_id
            for stored in record.members
            if stored.group_instance_id is not None
        }

    def _applied(self, stored: StoredMember, protocol: str) -> Member:
        member = self.members.get(stored.member_id)
        if member is None or protocol not in member.protocols or member.stored(protocol, stored.assignment) != stored:
            # While loading. Only the chosen protocol is on disk; the member sends the others when it joins again.
            member = Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                stored.session_timeout_ms,
                stored.rebalance_timeout_ms,
                {protocol: stored.subscription},
            )
        member.assignment = stored.assignment
        return member


def as_classic(group: AnyGroup) -> Group:
    """Return the group, which is known to be one of this protocol, as such."""
    assert isinstance(group, Group)
    return group
