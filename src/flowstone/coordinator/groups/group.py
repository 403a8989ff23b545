"""A group as the parts of a shard see it that all protocols share: committed offsets, expiry, listing, deletion.

Each protocol has a class of its own for its groups. Who is a member, and what a rebalance is, is known there only.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from flowstone.coordinator.groups.messages import CommitRequest, DescribedGroup
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
        """Return what ListGroups shows as the protocol type, empty if nobody ever joined."""
        ...

    @property
    def size_bytes(self) -> int:
        """Return about what the group takes in memory, without its offsets."""
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
        """Return whether the group is empty and nobody is about to join."""
        ...

    @property
    def empty_since_ms(self) -> int | None:
        """Return when the last member of an empty group left, or None if that is not known."""
        ...

    @property
    def has_deletable_offsets(self) -> bool:
        """Return whether offsets of topics that nobody subscribes to may be deleted."""
        ...

    def topics_in_use(self) -> frozenset[str] | None:
        """Return the topics whose offsets must not expire, or None if all may be in use."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic, or may do so."""
        ...

    def check_commit(self, request: CommitRequest) -> ErrorCode:
        """Return why the one who asks may not commit, or NONE."""
        ...

    def check_transactional_commit(self, request: CommitRequest) -> ErrorCode:
        """Return why the one who asks may not commit in a transaction, or NONE."""
        ...

    def session_timeout_ms(self, member_id: str) -> int:
        """Return how long a member may be silent after its last request."""
        ...

    def described(self) -> DescribedGroup:
        """Return the group as DescribeGroups shows it."""
        ...
