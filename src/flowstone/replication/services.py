"""The services that a broker's partitions use: flushing, cutting logs, the lease, and proposals to the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import Timer
from flowstone.replication.in_sync import IsEligible, ProposedIsr
from flowstone.replication.lease import Lease

if TYPE_CHECKING:
    from flowstone.replication.partition import Partition


class Flushing(Protocol):
    """The flusher's interface for a partition."""

    def request(self, log: PartitionLog) -> None: ...

    def appended(self, log: PartitionLog, record_count: int) -> None: ...


class Cutting(Protocol):
    """The log manager's interface for a follower. `is_due` is called again before records are dropped, after a long
    wait.

    Raises ApiError if the disk is full, StorageFault if it has failed.
    """

    async def truncate_to(self, log: PartitionLog, offset: int, is_due: Callable[[], bool] = ...) -> None:
        """Drop the log's end from `offset` on."""
        ...

    async def reset_to(self, log: PartitionLog, offset: int, is_due: Callable[[], bool] = ...) -> None:
        """Drop the whole log, which continues at `offset`."""
        ...


@dataclass(frozen=True)
class ReplicaServices:
    lease: Lease
    monotonic: Callable[[], float]
    logs: Cutting
    lag_time_max_s: float
    # Proposes an ISR to the cluster, as a change of the partition's present `partition_epoch` and of no other. What is
    # decided comes by `Partition.update`; if it is certain that nothing will be, by `LeaderRole.isr_change_failed`.
    on_isr_change: Callable[[Partition, ProposedIsr], None]
    call_later: Callable[[float, Callable[[], None]], Timer]
    # Whether the cluster would let a follower into an ISR, as far as this broker knows. Other followers are not waited
    # for.
    is_eligible: IsEligible = lambda member: True
    # Called for each append that failed for lack of space.
    on_full: Callable[[PartitionLog], None] = lambda log: None
