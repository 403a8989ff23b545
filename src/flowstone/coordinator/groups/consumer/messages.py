"""The requests and responses of consumer groups, independent of API versions; handlers convert both ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from flowstone.coordinator.groups.consumer_records import Partition
from flowstone.errors import ErrorCode

CONSUMER = "consumer"
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class ConsumerHeartbeatRequest(NamedTuple):
    """A heartbeat. A field that is None has not changed since the last one."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: frozenset[Partition] | None = None
    client_id: str = ""
    client_host: str = ""
    makes_member_id: bool = True  # since version 1 the client does
    may_see: Callable[[str], bool] | None = None  # whether the member's client may know of a topic; None: of all


class ConsumerHeartbeatResponse(NamedTuple):
    error_code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assigned: frozenset[Partition] | None = None  # None: what the member knows is unchanged


class ConsumerMemberDescribed(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topics: tuple[str, ...]
    regex: str | None
    assigned: frozenset[Partition]
    target: frozenset[Partition]
    is_classic: bool
    state: str = ""
    revoking: frozenset[Partition] = frozenset()


class ConsumerGroupDescribed(NamedTuple):
    """A consumer group with its members. `names` has the topics' names by id; deleted topics are missing."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ConsumerMemberDescribed, ...] = ()
    names: Mapping[bytes, str] = {}
    unsettled: str = ""  # one sentence that says why the group has not settled; empty if it has
    topics: tuple[str, ...] = ()  # that members subscribe to, by name or by regular expression
    rebalance_count: int = 0  # since this coordinator loaded the group
    rebalance_reason: str = ""  # of the last one
    rebalance_timestamp_ms: int = -1
