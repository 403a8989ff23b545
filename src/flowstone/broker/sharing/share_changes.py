"""Values that a share partition passes to its owner: changes to make durable, and the causes of dead letters."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from flowstone.coordinator.share.records import Delay, LetterRange, StateBatch


class Reason(IntEnum):
    """Why a record is copied to a dead letter queue, as it is stored."""

    REJECTED = 0
    DELIVERED_TOO_OFTEN = 1


class Change(NamedTuple):
    """A change of state to be made durable: the start offset, and states by range.

    `given_up` are records that are out of delivery and are archived once their letters are written.
    """

    start_offset: int
    batches: tuple[StateBatch, ...]
    delivery_complete_count: int
    delays: tuple[Delay, ...] = ()
    given_up: tuple[LetterRange, ...] = ()
