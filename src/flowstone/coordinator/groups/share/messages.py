"""The requests and responses of share groups, independent of API versions, and the tasks of their shard."""

from __future__ import annotations

from typing import NamedTuple

from flowstone.coordinator.groups.share_records import TopicPartitions
from flowstone.errors import ErrorCode

SHARE = "share"
ASSIGNOR_NAME = "simple"
JOIN_EPOCH, LEAVE_EPOCH = 0, -1


class ShareHeartbeatRequest(NamedTuple):
    group_id: str
    member_id: str
    member_epoch: int  # 0: join, -1: leave
    rack_id: str | None = None  # null: unchanged
    subscribed_topics: tuple[str, ...] | None = None  # null: unchanged
    client_id: str = ""
    client_host: str = ""


class ShareHeartbeatResponse(NamedTuple):
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: TopicPartitions | None = None  # null: unchanged since the last response


class DescribedShareMember(NamedTuple):
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    assignment: tuple[tuple[bytes, str, tuple[int, ...]], ...]  # topic id, name, partitions


class DescribedShareGroup(NamedTuple):
    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    members: tuple[DescribedShareMember, ...] = ()


class InitializeStates(NamedTuple):
    """A task: have the share coordinator create the state of these partitions for the group."""

    group_id: str
    state_epoch: int
    partitions: TopicPartitions
