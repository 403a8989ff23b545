"""The interface of a group for the parts of a shard that all protocols share: commits, expiry, listing, deletion.

Each protocol has a class of its own for its groups, which alone defines membership and rebalances.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from flowstone.coordinator.groups.messages import CommitRequest, DescribedGroup
from flowstone.coordinator.groups.records import GroupRecord
from flowstone.errors import ErrorCode


class AnyGroup(Protocol):
    group_id: str
    state_timestamp_ms: int

    @property
    def type(self) -> str:
        """Return the name of the group's protocol, as ListGroups shows it."""
        ...

    @property
    def state_name(self) -> str:
        """Return the name of the group's state, as ListGroups shows it."""
        ...

    @property
    def protocol_type_name(self) -> str:
        """Return the protocol type as ListGroups shows it, empty if no member ever joined."""
        ...

    @property
    def size_bytes(self) -> int:
        """Return an estimate of the group's memory in bytes, without its offsets."""
        ...

    @property
    def members(self) -> Collection[str]:
        """Return the ids of the members."""
        ...

    @property
    def is_empty(self) -> bool:
        """Return whether the group has no members, and may be deleted."""
        ...

    @property
    def is_unused(self) -> bool:
        """Return whether the group is empty and no member is about to join."""
        ...

    @property
    def empty_since_ms(self) -> int | None:
        """Return when the last member of an empty group left, or None if that is unknown."""
        ...

    @property
    def has_deletable_offsets(self) -> bool:
        """Return whether offsets of topics without a subscription may be deleted."""
        ...

    def topics_in_use(self) -> frozenset[str] | None:
        """Return the topics whose offsets must not expire, or None if all may be in use."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic, or may do so."""
        ...

    def check_commit(self, request: CommitRequest) -> ErrorCode:
        """Return NONE if the sender may commit, or else the error code."""
        ...

    def check_transactional_commit(self, request: CommitRequest) -> ErrorCode:
        """Return NONE if the sender may commit in a transaction, or else the error code."""
        ...

    def session_timeout_ms(self, member_id: str) -> int:
        """Return the session timeout of a member, counted from its last request."""
        ...

    def described(self) -> DescribedGroup:
        """Return the group as DescribeGroups shows it."""
        ...

    def removal(self) -> Sequence[GroupRecord]:
        """Return the tombstones that remove the group, which has no members."""
        ...
