"""A consumer group: its epochs, its members with what they have, and what they shall have.

Everything but the fields marked as soft is changed by stored records only (`replay`). The state is derived: Empty
without members, Assigning while the group epoch is above that of the targets, Reconciling while a member has not
reached its target, Stable otherwise.

Invariant: a partition has one owner, the member that has it assigned or has not confirmed yet that it gave it up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flowstone.coordinator.groups.config import (
    GROUP_OVERHEAD_BYTES,
    MEMBER_OVERHEAD_BYTES,
    PARTITION_OVERHEAD_BYTES,
    PROTOCOL_OVERHEAD_BYTES,
    TEXT_CHARACTER_BYTES,
)
from flowstone.coordinator.groups.consumer.messages import CONSUMER, STATIC_LEAVE_EPOCH
from flowstone.coordinator.groups.consumer_records import (
    ConsumerKey,
    ConsumerMemberCurrentStored,
    ConsumerMemberStored,
    ConsumerRecordRemoved,
    ConsumerRegexStored,
    MemberState,
    Partition,
)
from flowstone.coordinator.groups.messages import DEAD, UNKNOWN_MEMBER_ID, CommitRequest, DescribedGroup
from flowstone.coordinator.groups.records import NO_TIMESTAMP
from flowstone.errors import ErrorCode

EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"
FIRST_EPOCH = 1
NO_PARTITIONS: frozenset[Partition] = frozenset()
_NONE_ASSIGNED: Mapping[Partition, int] = {}
NOT_SEEN = -1


def stored_member_bytes(stored: ConsumerMemberStored) -> int:
    """Return an estimate of the memory in bytes of a member, without its partitions."""
    texts = (stored.member_id, stored.instance_id, stored.rack_id, stored.client_id, stored.client_host, stored.regex)
    characters = sum(len(text or "") for text in texts) + sum(map(len, stored.subscribed_topics))
    size_bytes = MEMBER_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * characters
    if stored.classic is not None:
        size_bytes += sum(PROTOCOL_OVERHEAD_BYTES + len(metadata) for _, metadata in stored.classic.protocols)
    return size_bytes


@dataclass(slots=True, eq=False)
class ConsumerMember:
    stored: ConsumerMemberStored
    topics: frozenset[str]  # the subscribed names, without those of the regular expression
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Mapping[Partition, int] = field(default_factory=dict)  # with the epochs in which it got them
    revoking: Mapping[Partition, int] = field(default_factory=dict)
    counted_bytes: int = 0

    @property
    def member_id(self) -> str:
        return self.stored.member_id

    @property
    def is_away(self) -> bool:
        """Return whether this is a static member that has left and may come back under another member id."""
        return self.epoch == STATIC_LEAVE_EPOCH

    @property
    def size_bytes(self) -> int:
        """Return an estimate of the member's memory in bytes."""
        partitions = len(self.assigned) + len(self.revoking)
        return stored_member_bytes(self.stored) + PARTITION_OVERHEAD_BYTES * partitions


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    group_id: str
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    assignment_epoch: int = FIRST_EPOCH
    assignment_timestamp_ms: int = NO_TIMESTAMP
    members_by_id: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # group instance id to member id
    targets: dict[str, frozenset[Partition]] = field(default_factory=dict)
    owners: dict[Partition, str] = field(default_factory=dict)
    regexes: dict[str, ConsumerRegexStored] = field(default_factory=dict)
    # Soft: the session timeout of members, as of the last heartbeat; the group's settings may change it.
    consumer_session_timeout_ms: int = 45_000
    state_timestamp_ms: int = 0  # soft: when the last member left, as far as this coordinator knows
    members_bytes: int = 0
    # Soft: the subscribers of each topic and regular expression, and the number of classic members.
    topic_subscribers: Counter[str] = field(default_factory=Counter)
    regex_subscribers: Counter[str] = field(default_factory=Counter)
    classic_count: int = 0
    # Soft: the version of the metadata that the metadata hash was last computed for.
    checked_version: int = NOT_SEEN
    # Soft: whether the regular expressions are being resolved, and for which version of the metadata they were last.
    is_resolving: bool = False
    resolved_version: int = NOT_SEEN
    # Soft: the epoch for which a task computes the targets, and whether it found members that are gone since.
    assigning_epoch: int | None = None
    has_lost_targets: bool = False
    # Whether a target was stored after the last assignment: those of one epoch may be stored in parts, the epoch last.
    has_partial_targets: bool = False
    # For people: rebalances since this coordinator loaded the group, and the reason of the last one.
    rebalance_count: int = 0
    rebalance_reason: str = ""
    rebalance_timestamp_ms: int = NO_TIMESTAMP

    # The interface of all protocols' groups: see `groups.group.AnyGroup`

    @property
    def type(self) -> str:
        return CONSUMER

    @property
    def state_name(self) -> str:
        if not self.members_by_id:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        return RECONCILING if any(map(self.is_unsettled, self.members_by_id.values())) else STABLE

    @property
    def protocol_type_name(self) -> str:
        return "consumer"

    @property
    def size_bytes(self) -> int:
        resolved = sum(TEXT_CHARACTER_BYTES * sum(map(len, each.topics)) for each in self.regexes.values())
        texts = TEXT_CHARACTER_BYTES * len(self.group_id) + resolved
        return GROUP_OVERHEAD_BYTES + texts + self.members_bytes

    @property
    def members(self) -> Collection[str]:
        return self.members_by_id.keys()

    @property
    def is_empty(self) -> bool:
        return not self.members_by_id

    @property
    def is_unused(self) -> bool:
        return not self.members_by_id

    @property
    def empty_since_ms(self) -> int | None:
        return None

    @property
    def has_deletable_offsets(self) -> bool:
        return True

    def topics_in_use(self) -> frozenset[str] | None:
        return self.subscribed_topics()

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_subscribers or any(topic in each.topics for each in self._used_regexes())

    def check_commit(self, request: CommitRequest) -> ErrorCode:
        """Return NONE also for an older epoch: the partitions are then checked one by one (`refused_offsets`)."""
        if request.generation_id < 0 and not self.members_by_id:
            return ErrorCode.NONE
        return self._check_member(request)

    def check_transactional_commit(self, request: CommitRequest) -> ErrorCode:
        names_member = request.member_id != UNKNOWN_MEMBER_ID or request.group_instance_id is not None
        if request.generation_id < 0 and (not self.members_by_id or not names_member):
            return ErrorCode.NONE
        error_code = self._check_member(request)
        return ErrorCode.ILLEGAL_GENERATION if error_code is ErrorCode.STALE_MEMBER_EPOCH else error_code

    def _check_member(self, request: CommitRequest) -> ErrorCode:
        member = self.members_by_id.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.stored.classic is not None:
            is_current = request.generation_id == member.epoch
            return ErrorCode.NONE if is_current else ErrorCode.ILLEGAL_GENERATION
        if not request.knows_member_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.STALE_MEMBER_EPOCH if request.generation_id > member.epoch else ErrorCode.NONE

    def is_commit_outdated(self, request: CommitRequest) -> bool:
        """Return whether a member commits in an older epoch: only partitions that it has had since then count."""
        member = self.members_by_id.get(request.member_id)
        return member is not None and member.stored.classic is None and request.generation_id < member.epoch

    def may_commit(self, member_id: str, epoch: int, partition: Partition) -> bool:
        """Return whether the member has had the partition since that epoch of its own, or an earlier one."""
        member = self.members_by_id[member_id]
        since_epoch = member.assigned.get(partition, member.revoking.get(partition))
        return since_epoch is not None and epoch >= since_epoch

    def check_fetch(self, member_id: str, member_epoch: int) -> ErrorCode:
        """Return NONE if the member may fetch the group's offsets in this epoch, or else the error code."""
        member = self.members_by_id.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member.epoch == member_epoch else ErrorCode.STALE_MEMBER_EPOCH

    def session_timeout_ms(self, member_id: str) -> int:
        classic = self.members_by_id[member_id].stored.classic
        return self.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms

    def described(self) -> DescribedGroup:
        """Return the group as DescribeGroups shows it, which knows classic groups only."""
        return DescribedGroup(self.group_id, DEAD, ErrorCode.GROUP_ID_NOT_FOUND)

    def removal(self) -> Sequence[ConsumerRecordRemoved]:
        """Return the tombstones of all of the group's records, those of members first."""
        members, group_id = self.members_by_id, self.group_id
        return [
            *(ConsumerRecordRemoved(group_id, ConsumerKey.MEMBER_CURRENT, each) for each in members),
            *(ConsumerRecordRemoved(group_id, ConsumerKey.MEMBER_TARGET, each) for each in members),
            ConsumerRecordRemoved(group_id, ConsumerKey.TARGET),
            *(ConsumerRecordRemoved(group_id, ConsumerKey.MEMBER, each) for each in members),
            *(ConsumerRecordRemoved(group_id, ConsumerKey.REGEX, each) for each in self.regexes),
            ConsumerRecordRemoved(group_id, ConsumerKey.PARTITION_METADATA),
            ConsumerRecordRemoved(group_id, ConsumerKey.GROUP),
        ]

    # Subscriptions

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics of all members: by name, and those that their regular expressions are known to match."""
        topics: set[str] = set(self.topic_subscribers)
        for each in self._used_regexes():
            topics.update(each.topics)
        return frozenset(topics)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics that one member subscribes to."""
        resolved = self.regexes.get(member.stored.regex or "")
        return member.topics if resolved is None else member.topics.union(resolved.topics)

    def _used_regexes(self) -> Iterable[ConsumerRegexStored]:
        return (self.regexes[regex] for regex in self.regex_subscribers if regex in self.regexes)

    # Members

    def is_unsettled(self, member: ConsumerMember) -> bool:
        """Return whether the member has not reached its target of the newest assignment."""
        return member.state is not MemberState.STABLE or member.epoch != self.assignment_epoch

    def target_of(self, member_id: str) -> frozenset[Partition]:
        return self.targets.get(member_id, NO_PARTITIONS)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members_by_id.get(member_id)

    def member_for_replay(self, member_id: str) -> ConsumerMember:
        """Return the member; one that only an assignment names so far is made without a subscription."""
        if member_id not in self.members_by_id:
            stored = ConsumerMemberStored(self.group_id, member_id, None, None, "", "", (), None, -1, None)
            self.store_member(stored)
        return self.members_by_id[member_id]

    def store_member(self, stored: ConsumerMemberStored) -> None:
        member = self.members_by_id.get(stored.member_id)
        if member is None:
            member = self.members_by_id[stored.member_id] = ConsumerMember(stored, frozenset(stored.subscribed_topics))
        else:
            self._uncount(member)
            member.stored, member.topics = stored, frozenset(stored.subscribed_topics)
        if stored.instance_id is not None:
            self.static_members[stored.instance_id] = stored.member_id
        self.topic_subscribers.update(member.topics)
        if stored.regex:
            self.regex_subscribers[stored.regex] += 1
        self.classic_count += stored.classic is not None
        self._measure(member)

    def remove_member(self, member_id: str) -> None:
        member = self.members_by_id.get(member_id)
        if member is None:
            return
        self._uncount(member)
        self._move(member, _NONE_ASSIGNED, _NONE_ASSIGNED)
        del self.members_by_id[member_id]
        self.members_bytes -= member.counted_bytes
        self.targets.pop(member_id, None)

    def store_current(self, record: ConsumerMemberCurrentStored) -> None:
        member = self.member_for_replay(record.member_id)
        member.epoch, member.previous_epoch = record.member_epoch, record.previous_member_epoch
        member.state = record.state
        self._move(member, record.assigned, record.revoking)
        self._measure(member)

    def drop_current(self, member_id: str) -> None:
        member = self.members_by_id.get(member_id)
        if member is not None:
            member.epoch, member.previous_epoch, member.state = 0, 0, MemberState.STABLE
            self._move(member, _NONE_ASSIGNED, _NONE_ASSIGNED)

    def _move(
        self, member: ConsumerMember, assigned: Mapping[Partition, int], revoking: Mapping[Partition, int]
    ) -> None:
        """Change what a member has. While a shard loads, the last record that names a partition has its owner."""
        member_id, owners = member.member_id, self.owners
        for partition in (*member.assigned, *member.revoking):
            if partition not in assigned and partition not in revoking and owners.get(partition) == member_id:
                del owners[partition]
        for partition in (*assigned, *revoking):
            owners[partition] = member_id
        member.assigned, member.revoking = assigned, revoking

    def _uncount(self, member: ConsumerMember) -> None:
        """Remove a member's share of what is derived from subscriptions and properties."""
        stored = member.stored
        if stored.instance_id is not None and self.static_members.get(stored.instance_id) == stored.member_id:
            del self.static_members[stored.instance_id]
        for name in member.topics:
            self.topic_subscribers[name] -= 1
            if not self.topic_subscribers[name]:
                del self.topic_subscribers[name]
        if stored.regex:
            self.regex_subscribers[stored.regex] -= 1
            if not self.regex_subscribers[stored.regex]:
                del self.regex_subscribers[stored.regex]
        self.classic_count -= stored.classic is not None

    def _measure(self, member: ConsumerMember) -> None:
        size_bytes = member.size_bytes
        self.members_bytes += size_bytes - member.counted_bytes
        member.counted_bytes = size_bytes
