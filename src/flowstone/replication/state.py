"""The cluster's decisions about a partition, as replication uses them, and the values that replicas exchange.

Replication does not know the metadata: the broker passes it values with these fields.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

NO_LEADER_EPOCH = -1
UNKNOWN_BROKER_EPOCH = -1
NO_OFFSET = -1


class PartitionState(Protocol):
    """The cluster's decision about a partition. The leader epoch grows with each leader, the other with each change."""

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
    """A member of a proposed ISR, with the broker epoch under which it was seen (KIP-903).

    Whoever decides must refuse it if that broker has another epoch by now. UNKNOWN_BROKER_EPOCH makes no claim: the
    leader itself, and members that were in the ISR before and have not fetched since.
    """

    node_id: int
    broker_epoch: int


class ReplicaFetch(NamedTuple):
    """A follower's fetch from its leader: `fetch_offset` is also its durable position."""

    replica_id: int
    replica_epoch: int
    fetch_offset: int
    last_fetched_epoch: int  # of the follower's last record; NO_LEADER_EPOCH if it has none
    log_start_offset: int = NO_OFFSET  # the follower's own
    is_repeated: bool = False  # a parked fetch that is read again: its position was noted before


class DivergingEpoch(NamedTuple):
    """The leader's answer to a follower whose log differs: its largest epoch not above the follower's, and its end."""

    epoch: int
    end_offset: int
