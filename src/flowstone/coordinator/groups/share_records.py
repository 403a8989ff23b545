"""The typed records of share groups in `__consumer_offsets`: key types 10 to 15.

Each record replaces what is known under its key. All tombstones have one class, which names the key's type.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

# Topic id to the sorted indexes of its partitions.
TopicPartitions = Mapping[bytes, tuple[int, ...]]


class ShareKeyType(IntEnum):
    """The types of the keys of share groups' records."""

    MEMBER = 10
    GROUP = 11
    TARGET = 12
    MEMBER_TARGET = 13
    MEMBER_CURRENT = 14
    STATES = 15


class ShareMemberStored(NamedTuple):
    group_id: str
    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]


class ShareGroupStored(NamedTuple):
    group_id: str
    epoch: int
    metadata_hash: int


class ShareTargetStored(NamedTuple):
    """The epoch of the target assignment, and when it was computed."""

    group_id: str
    assignment_epoch: int
    timestamp_ms: int


class ShareMemberTargetStored(NamedTuple):
    group_id: str
    member_id: str
    partitions: TopicPartitions


class ShareMemberCurrentStored(NamedTuple):
    group_id: str
    member_id: str
    member_epoch: int
    previous_member_epoch: int
    partitions: TopicPartitions


class TopicState(NamedTuple):
    """A topic and those of its partitions that have state at the share coordinator, or are about to get it."""

    topic_id: bytes
    name: str
    partitions: tuple[int, ...]


class ShareStatesStored(NamedTuple):
    """The topics of a group by the progress of their state at the share coordinator."""

    group_id: str
    initializing: tuple[TopicState, ...] = ()
    initialized: tuple[TopicState, ...] = ()
    deleting: tuple[tuple[bytes, str], ...] = ()  # topic ids and names


class ShareRecordRemoved(NamedTuple):
    """The tombstone of any of the records above."""

    group_id: str
    key: ShareKeyType
    member_id: str = ""


ShareGroupRecord = (
    ShareMemberStored
    | ShareGroupStored
    | ShareTargetStored
    | ShareMemberTargetStored
    | ShareMemberCurrentStored
    | ShareStatesStored
    | ShareRecordRemoved
)
