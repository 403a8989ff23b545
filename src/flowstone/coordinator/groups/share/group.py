"""A share group: its members, epochs and assignments, and the topics whose state exists at the share coordinator.

Everything but the fields marked as soft is changed by `replay` only. The state is derived: Empty without members,
Stable with some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flowstone.coordinator.groups.config import (
    GROUP_OVERHEAD_BYTES,
    MEMBER_OVERHEAD_BYTES,
    PARTITION_OVERHEAD_BYTES,
    TEXT_CHARACTER_BYTES,
)
from flowstone.coordinator.groups.messages import DEAD, CommitRequest, DescribedGroup
from flowstone.coordinator.groups.records import NO_TIMESTAMP, GroupRecord
from flowstone.coordinator.groups.share.messages import SHARE
from flowstone.coordinator.groups.share_records import (
    ShareKeyType,
    ShareMemberStored,
    ShareRecordRemoved,
    TopicPartitions,
)
from flowstone.errors import ErrorCode

EMPTY, STABLE = "Empty", "Stable"
NO_PARTITIONS: TopicPartitions = {}
NEW_GROUP_EPOCH = 1  # as in Kafka since 4.3: the first assignment has epoch 2
# Topic id to the topic's name and partitions.
TopicStates = dict[bytes, tuple[str, frozenset[int]]]


def stored_member_bytes(stored: ShareMemberStored) -> int:
    """Return an estimate of a member's memory in bytes, without its partitions."""
    texts = (stored.member_id, stored.rack_id or "", stored.client_id, stored.client_host, *stored.subscribed_topics)
    return MEMBER_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * sum(map(len, texts))


@dataclass(slots=True, eq=False)
class ShareMember:
    stored: ShareMemberStored
    epoch: int = 0
    previous_epoch: int = 0
    assigned: TopicPartitions = field(default_factory=dict)
    target: TopicPartitions = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Return an estimate of the member's memory in bytes."""
        partitions = sum(map(len, (*self.assigned.values(), *self.target.values())))
        return stored_member_bytes(self.stored) + PARTITION_OVERHEAD_BYTES * partitions


@dataclass(slots=True, eq=False)
class ShareGroup:
    group_id: str
    epoch: int = NEW_GROUP_EPOCH
    metadata_hash: int = 0
    assignment_epoch: int = NEW_GROUP_EPOCH
    assignment_timestamp_ms: int = 0
    members_by_id: dict[str, ShareMember] = field(default_factory=dict)
    topic_counts: Counter[str] = field(default_factory=Counter)  # how many members subscribe to each topic
    subscriptions_revision: int = 0  # counts changes of `topic_counts`' keys
    initializing: TopicStates = field(default_factory=dict)
    initialized: TopicStates = field(default_factory=dict)
    deleting: dict[bytes, str] = field(default_factory=dict)
    states_revision: int = 0  # counts changes of the three above
    members_bytes: int = 0  # an estimate of the memory of the members
    states_bytes: int = 0
    # Soft: since when the group is Empty; the hash of the topics that was computed last, and for what; until when no
    # further attempt to initialize state is made, when the first one was, and its state epoch.
    state_timestamp_ms: int = NO_TIMESTAMP
    hash_key: tuple[int, int, int] | None = None
    hash_value: int = 0
    next_attempt_ms: int = 0
    session_ms: int = 0  # the session timeout as of the last heartbeat
    first_attempt_ms: int | None = None
    attempt_epoch: int = NEW_GROUP_EPOCH

    # The interface of all protocols' groups: see `groups.group.AnyGroup`

    @property
    def type(self) -> str:
        return SHARE

    @property
    def state_name(self) -> str:
        return STABLE if self.members_by_id else EMPTY

    @property
    def protocol_type_name(self) -> str:
        return SHARE

    @property
    def size_bytes(self) -> int:
        return GROUP_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * len(self.group_id) + self.members_bytes + self.states_bytes

    @property
    def members(self) -> Collection[str]:
        return self.members_by_id.keys()

    @property
    def is_empty(self) -> bool:
        return not self.members_by_id

    @property
    def is_unused(self) -> bool:
        """Return whether the group has neither members nor state at the share coordinator."""
        return not (self.members_by_id or self.initialized or self.initializing or self.deleting)

    @property
    def empty_since_ms(self) -> int | None:
        return None

    @property
    def has_deletable_offsets(self) -> bool:
        return False

    def topics_in_use(self) -> frozenset[str] | None:
        return frozenset()

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_counts

    def check_commit(self, request: CommitRequest) -> ErrorCode:
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_transactional_commit(self, request: CommitRequest) -> ErrorCode:
        return ErrorCode.GROUP_ID_NOT_FOUND

    def session_timeout_ms(self, member_id: str) -> int:
        return self.session_ms

    def described(self) -> DescribedGroup:
        return DescribedGroup(self.group_id, DEAD, ErrorCode.GROUP_ID_NOT_FOUND)

    def removal(self) -> Sequence[GroupRecord]:
        return tuple(
            ShareRecordRemoved(self.group_id, key)
            for key in (ShareKeyType.STATES, ShareKeyType.TARGET, ShareKeyType.GROUP)
        )

    # Members and their topics

    def store_member(self, stored: ShareMemberStored) -> None:
        member = self.members_by_id.get(stored.member_id)
        if member is None:
            member = self.members_by_id[stored.member_id] = ShareMember(stored)
            self._count_topics((), stored.subscribed_topics)
            self.members_bytes += member.size_bytes
            return
        before_bytes = member.size_bytes
        self._count_topics(member.stored.subscribed_topics, stored.subscribed_topics)
        member.stored = stored
        self.members_bytes += member.size_bytes - before_bytes

    def remove_member(self, member_id: str) -> None:
        member = self.members_by_id.pop(member_id, None)
        if member is not None:
            self._count_topics(member.stored.subscribed_topics, ())
            self.members_bytes -= member.size_bytes

    def assign(
        self, member: ShareMember, *, assigned: TopicPartitions | None = None, target: TopicPartitions | None = None
    ) -> None:
        """Replace the member's current or target partitions."""
        before_bytes = member.size_bytes
        member.assigned = member.assigned if assigned is None else assigned
        member.target = member.target if target is None else target
        self.members_bytes += member.size_bytes - before_bytes

    def topic_counts_with(self, member: ShareMember | None, topics: Iterable[str]) -> Mapping[str, int]:
        """Return the numbers of subscribers of all topics, were the member to subscribe to these."""
        before = set(member.stored.subscribed_topics) if member is not None else set()
        after = set(topics)
        if before == after:
            return self.topic_counts
        counts = Counter(self.topic_counts)
        counts.update(after - before)
        counts.subtract(before - after)
        return +counts

    def _count_topics(self, before: Iterable[str], after: Iterable[str]) -> None:
        names = self.topic_counts.keys()
        known = len(names)
        added = set(after) - set(before)
        self.topic_counts.update(added)
        self.topic_counts.subtract(set(before) - set(after))
        self.topic_counts = +self.topic_counts
        if added or len(self.topic_counts) != known:
            self.subscriptions_revision += 1
