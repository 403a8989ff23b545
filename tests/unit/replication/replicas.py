"""A replica of a partition among others, on simulated files, under a clock that tests move. It flushes when told to."""

from __future__ import annotations

from collections.abc import Callable

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.config import TopicConfig
from flowstone.errors import ErrorCode
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.follower_role import FollowerRole
from flowstone.replication.in_sync import ProposedIsr
from flowstone.replication.leader_role import LeaderRole
from flowstone.replication.lease import Lease
from flowstone.replication.partition import Partition
from flowstone.replication.services import ReplicaServices
from flowstone.replication.state import DivergingEpoch, ReplicaFetch
from tests.support.cutting import truncating_at_once
from tests.support.partitions import ON_DISK, Flusher, a_batch, a_log, flush

NODE = 1
LAG_S = 30.0
LEASE_S = 10.0


class Watcher:
    def __init__(self) -> None:
        self.size_bytes = 0
        self.interruptions = 0

    def advanced(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes

    def interrupted(self) -> None:
        self.interruptions += 1


class Cutting:
    """The broker's truncation of logs; `before_cut` is what happens while it waits for the disk."""

    def __init__(self) -> None:
        self.before_cut: Callable[[], None] = lambda: None
        self._truncating = truncating_at_once(SimulatedClock(), lambda: self.before_cut())

    async def truncate_to(self, log: PartitionLog, offset: int, is_due: Callable[[], bool] = lambda: True) -> None:
        await self._truncating.truncate_to(log, offset, is_due)

    async def reset_to(self, log: PartitionLog, offset: int, is_due: Callable[[], bool] = lambda: True) -> None:
        await self._truncating.reset_to(log, offset, is_due)


class ReplicaWorld:
    """Broker 1's replica of a partition."""

    def __init__(self, config: TopicConfig = ON_DISK, **state: object) -> None:
        self.clock = SimulatedClock()
        self.lease = Lease(self.clock.monotonic)
        self.lease.extend(self.clock.monotonic() + LEASE_S)
        self.gone: set[int] = set()  # brokers that the cluster would not let into an ISR
        self.proposals: list[ProposedIsr] = []
        self.cutting = Cutting()
        services = ReplicaServices(
            self.lease,
            self.clock.monotonic,
            self.cutting,
            LAG_S,
            lambda _, isr: self.proposals.append(isr),
            self.clock.call_later,
            lambda member: member.node_id not in self.gone,
        )
        self.flusher = Flusher()
        self.state = PartitionImage(1, 3, 0, (1, 2, 3), (1, 2, 3))
        self.state = self._next_state(**state)
        self.partition = Partition(a_log(config), self.flusher, self.state, NODE, services)
        self.log = self.partition.log
        self.lease.on_regained(self.partition.move_high_watermark)

    def _next_state(self, **changes: object) -> PartitionImage:
        fields = {name: getattr(self.state, name) for name in ("leader", "leader_epoch", "replicas", "isr")}
        return PartitionImage(partition_epoch=self.state.partition_epoch + 1, **{**fields, **changes})  # type: ignore[arg-type]

    def decide(self, **changes: object) -> None:
        self.state = self._next_state(**changes)
        self.partition.update(self.state, NODE)

    def wait(self, seconds: float) -> None:
        """Time passes, and the lease is renewed before timers run."""
        self.lease.extend(self.clock.monotonic() + seconds + LEASE_S)
        self.clock.advance(seconds)

    def append(self, count: int = 1, acks: int = -1) -> list[ErrorCode]:
        """The list gets the outcome once there is one."""
        outcome: list[ErrorCode] = []
        last_offset = self.partition.append(a_batch(count), acks).last_offset
        self.partition.when_committed(last_offset + 1, outcome.append)
        return outcome

    def flush(self) -> None:
        flush(self.partition)

    def fetch(
        self,
        replica_id: int,
        offset: int,
        *,
        epoch: int | None = None,
        last_epoch: int = -1,
        broker_epoch: int = 7,
        is_repeated: bool = False,
    ) -> bytes | DivergingEpoch:
        current = self.partition.leader_epoch if epoch is None else epoch
        fetch = ReplicaFetch(replica_id, broker_epoch, offset, last_epoch, is_repeated=is_repeated)
        found = self.partition.leader_role(current).read(fetch, 1 << 20, at_least_one=True)
        return b"" if found is None else found if isinstance(found, DivergingEpoch) else found.read()

    def follow(self, records: bytes, *, high_watermark: int = 0, log_start: int = 0, epoch: int | None = None) -> None:
        current = self.partition.leader_epoch if epoch is None else epoch
        self.partition.follower_role(current).append_fetched(records, high_watermark, log_start)

    @property
    def leading(self) -> LeaderRole:
        assert self.partition.leading is not None
        return self.partition.leading

    @property
    def following(self) -> FollowerRole:
        assert self.partition.following is not None
        return self.partition.following

    @property
    def high_watermark(self) -> int:
        return self.partition.high_watermark.offset


def leader_bytes(*counts: int, epochs: tuple[int, ...] = (3,)) -> bytes:
    """What a leader has after appends of so many records each, the last of them in the last of the epochs."""
    leader = a_log(ON_DISK)
    for at, count in enumerate(counts):
        leader.append(a_batch(count), leader_epoch=epochs[min(at, len(epochs) - 1)])
    found = leader.read(0, 1 << 20, leader.end, at_least_one=True)
    assert found is not None
    return found.read()
