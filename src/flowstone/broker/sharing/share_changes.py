"""What a share partition asks of its owner: changes to make durable, and records to copy to a dead letter queue."""

from __future__ import annotations

from typing import NamedTuple

from flowstone.coordinator.share.records import Delay, StateBatch

REJECTED = "The record was rejected."
DELIVERED_TOO_OFTEN = "The record was delivered too often without being accepted."


class DeadLetters(NamedTuple):
    """Records that are copied to a dead letter queue, and why."""

    first: int
    last: int
    delivery_count: int
    reason: str


class Change(NamedTuple):
    """A change of state to be made durable: the start offset, and states by range."""

    start_offset: int
    batches: tuple[StateBatch, ...]
    delivery_complete_count: int
    delays: tuple[Delay, ...] = ()
