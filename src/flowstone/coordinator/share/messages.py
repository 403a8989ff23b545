"""The requests to the share coordinator and its responses, as the state machine sees them."""

from __future__ import annotations

from typing import NamedTuple

from flowstone.coordinator.share.records import (
    NO_START_OFFSET,
    UNKNOWN_COUNT,
    Delay,
    LetterBatch,
    LetterRange,
    ShareKey,
    StateBatch,
)
from flowstone.errors import ErrorCode

# Epochs that a writer does not know, which are then not checked.
NO_EPOCH = -1


class InitialState(NamedTuple):
    """The beginning of a share partition's state; offset -1: its leader chooses it at the first fetch."""

    key: ShareKey
    state_epoch: int
    start_offset: int = NO_START_OFFSET


class StateWrite(NamedTuple):
    """A change of a share partition's state by the leader of the partition; what it lacks is unchanged.

    Offset -1: the start is unchanged. None: the letters are unchanged.
    """

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]
    delivery_complete_count: int = UNKNOWN_COUNT
    delays: tuple[Delay, ...] = ()
    letters: LetterBatch | None = None
    given_up: tuple[LetterRange, ...] = ()


class StateResult(NamedTuple):
    """The outcome of a change of a share partition's state."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class StateRead(NamedTuple):
    """The stored state of a share partition; the rest has no meaning if there is an error code."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state_epoch: int = 0
    start_offset: int = NO_START_OFFSET
    batches: tuple[StateBatch, ...] = ()
    delays: tuple[Delay, ...] = ()
    letters: LetterBatch | None = None
    given_up: tuple[LetterRange, ...] = ()


class StateSummary(NamedTuple):
    """The start offset of a share partition, and how many records from there on are completed (-1: unknown)."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = NO_START_OFFSET
    delivery_complete_count: int = UNKNOWN_COUNT
