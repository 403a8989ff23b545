"""The typed records of `__consumer_offsets`: what is stored about groups.

The field names are those of Kafka's OffsetCommit and GroupMetadata records. Their binary form is the runtime's concern.
A record is a whole: GroupStored replaces everything known about the group's last generation, OffsetCommitted everything
known about one partition of one group.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.coordinator.groups.consumer_records import ConsumerRecord
from flowstone.coordinator.groups.share_records import ShareGroupRecord

NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1


class OffsetCommitted(NamedTuple):
    """A committed offset. A tuple: one is made for every partition of every commit, and a million may be stored."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP  # only from clients that still send a retention time (OffsetCommit 2 to 4)


class OffsetRemoved(NamedTuple):
    """The tombstone of an `OffsetCommitted`."""

    group_id: str
    topic: str
    partition: int


class StoredMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupStored(NamedTuple):
    """A completed generation of a group: Stable when it has members, Empty when it has none."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int
    members: tuple[StoredMember, ...]

    @property
    def size_bytes(self) -> int:
        """Return an estimate of the record's size in the log; text counts as if each character took three bytes."""
        return sum(
            len(each.subscription)
            + len(each.assignment)
            + 3
            * (len(each.member_id) + len(each.group_instance_id or "") + len(each.client_id) + len(each.client_host))
            for each in self.members
        )


class GroupRemoved(NamedTuple):
    """The tombstone of a `GroupStored`."""

    group_id: str


GroupRecord = OffsetCommitted | OffsetRemoved | GroupStored | GroupRemoved | ConsumerRecord | ShareGroupRecord
