"""The records of `__share_group_state`: snapshots of a share partition's state, updates since, and its end."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

UNCHANGED_START_OFFSET = -1
NO_START_OFFSET = -1
UNKNOWN_COUNT = -1


class DeliveryState(IntEnum):
    """The state of a record in a share group. ACQUIRED is never stored: a failover drops all locks."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


STORED_STATES = frozenset((DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED))


class ShareKey(NamedTuple):
    """A share partition: a partition of a topic as one group sees it."""

    group_id: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        """Return the key that names the share coordinator in FindCoordinator, and by which its shard is found."""
        topic_id = urlsafe_b64encode(self.topic_id).decode().rstrip("=")
        return f"{self.group_id}:{topic_id}:{self.partition}"


class StateBatch(NamedTuple):
    """The state and the delivery count of a range of offsets."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class Delay(NamedTuple):
    """A record that is not to be delivered again before a time, in milliseconds since the epoch."""

    offset: int
    not_before_ms: int


@dataclass(frozen=True, slots=True)
class ShareSnapshot:
    key: ShareKey
    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    create_ms: int
    write_ms: int
    batches: tuple[StateBatch, ...] = ()
    delivery_complete_count: int = UNKNOWN_COUNT
    delays: tuple[Delay, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareUpdate:
    """A change of the state since a snapshot; ranges that it does not name keep their state."""

    key: ShareKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int = UNCHANGED_START_OFFSET
    batches: tuple[StateBatch, ...] = ()
    delivery_complete_count: int = UNKNOWN_COUNT
    delays: tuple[Delay, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareStateRemoved:
    key: ShareKey


ShareRecord = ShareSnapshot | ShareUpdate | ShareStateRemoved
