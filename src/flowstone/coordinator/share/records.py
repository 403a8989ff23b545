"""The records of `__share_group_state`: snapshots of a share partition's state, updates since, and its end."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

UNCHANGED_START_OFFSET = -1
NO_START_OFFSET = -1
UNKNOWN_COUNT = -1
# Sequence numbers of producers wrap around: 2^31 - 1 is followed by 0.
SEQUENCE_MASK = 2**31 - 1


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


class LetterRange(NamedTuple):
    """Records that are to be copied to a dead letter queue, and the number that stands for the reason."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: int


class LetterBatch(NamedTuple):
    """The batch of dead letters that a share partition's leader is writing, and the producer that writes it.

    It is stored before the batch is sent. A leader that finds it, after a crash, sends the same batch with the same
    producer id and sequence, so that the queue recognizes it. Without ranges all are written: the next batch continues
    at `base_sequence`.
    """

    topic_id: bytes
    partition: int
    producer_id: int
    base_sequence: int
    time_ms: int  # of the letters, the same in each attempt
    ranges: tuple[LetterRange, ...] = ()

    @property
    def letter_count(self) -> int:
        return sum(each.last_offset - each.first_offset + 1 for each in self.ranges)

    def finished(self) -> LetterBatch:
        """Return what is stored once the letters are in the queue."""
        return self._replace(base_sequence=(self.base_sequence + self.letter_count) & SEQUENCE_MASK, ranges=())


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
    letters: LetterBatch | None = None
    # Records that were given up and will be archived once their letters are written; they are not delivered any more.
    given_up: tuple[LetterRange, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareUpdate:
    """A change of the state since a snapshot; what it does not name keeps its state, the letters too."""

    key: ShareKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int = UNCHANGED_START_OFFSET
    batches: tuple[StateBatch, ...] = ()
    delivery_complete_count: int = UNKNOWN_COUNT
    delays: tuple[Delay, ...] = ()
    letters: LetterBatch | None = None
    given_up: tuple[LetterRange, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareStateRemoved:
    key: ShareKey


ShareRecord = ShareSnapshot | ShareUpdate | ShareStateRemoved
