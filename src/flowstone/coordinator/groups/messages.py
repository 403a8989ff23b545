"""The requests and responses of a GroupShard, independent of API versions; handlers convert both ways.

Where versions differ, the difference is a field here (`member_id_required`, `skip_assignment_supported`) or is left to
the handler and documented at the field: the shard always answers in the newest version's terms.

They are tuples: frozen dataclasses take five times as long to define and to create.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1
NO_OFFSET = -1
NO_RETENTION_TIME = -1
CLASSIC = "classic"
DEAD = "Dead"  # the state of an unknown group


class JoinRequest(NamedTuple):
    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int  # JoinGroup 0 has none: the handler gives the session timeout
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # name and metadata, the preferred one first
    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str | None = None
    member_id_required: bool = True  # since JoinGroup 4
    skip_assignment_supported: bool = True  # since JoinGroup 9


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResponse(NamedTuple):
    error_code: ErrorCode = ErrorCode.NONE
    member_id: str = UNKNOWN_MEMBER_ID
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None  # null when unset; JoinGroup 0 to 6 require an empty string instead
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()  # for the leader only


class SyncRequest(NamedTuple):
    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()  # member id and assignment, from the leader only


class SyncResponse(NamedTuple):
    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatRequest(NamedTuple):
    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None


class HeartbeatResponse(NamedTuple):
    error_code: ErrorCode = ErrorCode.NONE


class LeavingMember(NamedTuple):
    member_id: str  # empty: an operator removes a static member by its instance id
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveRequest(NamedTuple):
    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


class LeaveResponse(NamedTuple):
    """The response to LeaveGroup. Versions 0 to 2 carry one member: its error is the response's."""

    error_code: ErrorCode = ErrorCode.NONE
    members: tuple[LeftMember, ...] = ()


# Topic, partition, offset, leader epoch, metadata. A plain tuple: one is made for every partition of every commit.
OffsetToCommit = tuple[str, int, int, int, str | None]


class CommitRequest(NamedTuple):
    """A commit of offsets. A stand-alone consumer sends no generation and no member id."""

    group_id: str
    offsets: Sequence[OffsetToCommit]
    member_id: str = UNKNOWN_MEMBER_ID
    generation_id: int = NO_GENERATION
    group_instance_id: str | None = None
    retention_time_ms: int = NO_RETENTION_TIME
    knows_member_epochs: bool = True  # since OffsetCommit 9 the generation may be a member's epoch


class CommitResponse(NamedTuple):
    """A code for each of the request's offsets, in order.

    GROUP_ID_NOT_FOUND is ILLEGAL_GENERATION before version 9.
    """

    errors: Sequence[ErrorCode]


class FetchOffsetsRequest(NamedTuple):
    group_id: str
    partitions: tuple[TopicPartition, ...] | None = None  # null: all of them
    require_stable: bool = False  # tell of offsets of open transactions, with an error
    with_pending: bool = False  # return what open transactions have committed, for people
    member_id: str | None = None  # of a consumer group's member that fetches, since OffsetFetch 9
    member_epoch: int = NO_GENERATION


class CommittedOffset(NamedTuple):
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE


class PendingOffset(NamedTuple):
    """The newest offset for a partition that was committed in an open transaction."""

    offset: int
    producer_id: int


class FetchOffsetsResponse(NamedTuple):
    """The committed offsets of a group. An unknown group or partition is no error: its offset is -1."""

    group_id: str
    offsets: dict[TopicPartition, CommittedOffset]
    error_code: ErrorCode = ErrorCode.NONE
    pending: Mapping[TopicPartition, PendingOffset] = MappingProxyType({})


class DeleteOffsetsRequest(NamedTuple):
    group_id: str
    partitions: tuple[TopicPartition, ...]


class DeleteOffsetsResponse(NamedTuple):
    error_code: ErrorCode = ErrorCode.NONE
    errors: Mapping[TopicPartition, ErrorCode] = MappingProxyType({})


class ListGroupsRequest(NamedTuple):
    """The filters of ListGroups. Empty ones match all groups; Kafka compares both case-insensitively."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


class ListGroupsResponse(NamedTuple):
    groups: tuple[ListedGroup, ...]


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """The state of a group. An unknown one is Dead with GROUP_ID_NOT_FOUND, without an error before version 6."""

    group_id: str
    state: str
    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str = ""
    protocol: str = ""
    generation: int = NO_GENERATION
    members: tuple[DescribedMember, ...] = ()
    rebalance_count: int = 0  # since this coordinator loaded the group
    rebalance_reason: str = ""  # the reason of the last one
    rebalance_timestamp_ms: int = -1


class DeleteGroupsResponse(NamedTuple):
    errors: dict[str, ErrorCode]
