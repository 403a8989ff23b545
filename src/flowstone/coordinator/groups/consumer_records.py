"""The typed records of consumer groups: key types 3 to 8 and 16 of `__consumer_offsets`.

The field names are those of Kafka's records. Every record is a whole: it replaces what was stored under its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

Partition = tuple[bytes, int]
"""A topic's id and a partition's index."""


class ConsumerKey(IntEnum):
    """The key types of consumer groups' records. Of PARTITION_METADATA, older brokers' records are only skipped."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET = 6
    MEMBER_TARGET = 7
    MEMBER_CURRENT = 8
    REGEX = 16


class MemberState(IntEnum):
    """The states of a member on the way to its target assignment, with Kafka's numbers."""

    STABLE = 0
    UNREVOKED = 1  # it must confirm that it has given up partitions
    UNRELEASED = 2  # it waits for partitions that other members still hold
    UNKNOWN = 127


class ClassicMember(NamedTuple):
    """The session timeout and protocols of a member that uses the classic protocol in a consumer group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberStored(NamedTuple):
    """A member's subscription and properties."""

    group_id: str
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMember | None = None


class ConsumerGroupStored(NamedTuple):
    """The epoch of a group, which grows with every change that an assignment depends on."""

    group_id: str
    epoch: int
    metadata_hash: int


class ConsumerTargetStored(NamedTuple):
    """The epoch of the group for which the targets were computed, and when."""

    group_id: str
    assignment_epoch: int
    timestamp_ms: int


class ConsumerMemberTargetStored(NamedTuple):
    """The partitions that a member shall have."""

    group_id: str
    member_id: str
    partitions: frozenset[Partition]


class ConsumerMemberCurrentStored(NamedTuple):
    """The partitions that a member has, each with the epoch in which it got it, and those that it must give up."""

    group_id: str
    member_id: str
    member_epoch: int
    previous_member_epoch: int
    state: MemberState
    assigned: Mapping[Partition, int]
    revoking: Mapping[Partition, int]


class ConsumerRegexStored(NamedTuple):
    """The topics that match a regular expression, as of a version of the metadata."""

    group_id: str
    regex: str
    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


class ConsumerRecordRemoved(NamedTuple):
    """The tombstone of a record. `name` is the member's id or the regular expression, where the key has one."""

    group_id: str
    key: ConsumerKey
    name: str = ""


ConsumerRecord = (
    ConsumerMemberStored
    | ConsumerGroupStored
    | ConsumerTargetStored
    | ConsumerMemberTargetStored
    | ConsumerMemberCurrentStored
    | ConsumerRegexStored
    | ConsumerRecordRemoved
)
