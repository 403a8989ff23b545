"""The services of the broker that share partitions use, and the errors that clients get for fetches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from flowstone.broker.coordinators.group_settings import GroupSettingsSource
from flowstone.broker.coordinators.share.share_states import ShareStates
from flowstone.broker.loop.workers import Workers
from flowstone.broker.sharing.acquisition import Acquired
from flowstone.broker.sharing.letters.dead_letters import DeadLetterQueues
from flowstone.broker.sharing.reads.recent_batches import KeptBatches
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.segments.cached_reads import LogSlice
from flowstone.ports.clock import Clock

# Why the share coordinator refuses a leader for good.
FENCED = (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH)


@dataclass(slots=True)
class ShareCounts:
    """Counts of the share groups' work since this broker started, over all share partitions that it leads."""

    deliveries: int = 0  # of records, the first ones and later ones
    redeliveries: int = 0
    acknowledgements: int = 0  # of records, that are durable or need not be
    dead_letters: int = 0
    failed_writes: int = 0


class Waiter(Protocol):
    """A fetch that waits for records."""

    member: str

    def offered(self, key: ShareKey) -> bool:
        """Try to acquire records of a share partition; return whether there were any for it."""
        ...

    def failed(self, key: ShareKey, error: ApiError) -> None:
        """Answer now: the share partition has failed or is closed."""
        ...


class Fetched(NamedTuple):
    records: LogSlice | bytes
    acquired: list[Acquired]


class ShareServices(NamedTuple):
    """The parts of the broker that share partitions need."""

    states: ShareStates
    settings: GroupSettingsSource
    clock: Clock
    workers: Workers
    dead_letters: DeadLetterQueues
    counts: ShareCounts
    kept_batches: KeptBatches
    # Held while the state of a share partition is loaded: the event loop handles all that have loaded in one turn.
    load_slots: asyncio.Semaphore


def told(code: ErrorCode) -> ErrorCode:
    """Return the error code for clients if the share coordinator answered with `code`."""
    if code in FENCED:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
