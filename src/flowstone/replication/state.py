"""What the cluster has decided about a partition, as replication sees it, and the words replicas speak.

Replication does not know the metadata: whoever wires the broker hands it values that have these fields.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

NO_LEADER_EPOCH = -1
UNKNOWN_BROKER_EPOCH = -1
NO_OFFSET = -1


class PartitionState(Protocol):
    """Decided by the cluster. Both epochs only grow: one with each leader, the other with each change."""

    @property
    def leader(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def partition_epoch(self) -> int: ...

    @property
    def replicas(self) -> tuple[int, ...]: ...

    @property
    def isr(self) -> tuple[int, ...]: ...


class IsrMember(NamedTuple):
    """A member of a proposed ISR, and the life of its broker that it was seen in (KIP-903).

    Whoever decides must refuse it if that broker has another epoch by now. UNKNOWN_BROKER_EPOCH makes no claim: the
    leader itself, and members that were in the ISR before and have not fetched since.
    """

    node_id: int
    broker_epoch: int


class ReplicaFetch(NamedTuple):
    """What a follower asks its leader for: `fetch_offset` is its durable position too."""

    replica_id: int
    replica_epoch: int
    fetch_offset: int
    last_fetched_epoch: int  # of its last record; NO_LEADER_EPOCH if it has none
    log_start_offset: int = NO_OFFSET  # its own
    is_repeated: bool = False  # a parked fetch that is read again: its position was told before


class DivergingEpoch(NamedTuple):
    """The leader's answer to a follower whose log is another: its largest epoch not above the asked, and its end."""

    epoch: int
    end_offset: int
