"""The state that a fetch session keeps for one partition: what its client wants, and what the client was last told.

The end of what is visible in a partition depends on the reader (`LocalReplica.visible_end`). Each partition of a
session watches that end, and notifies the session when there may be something new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.wire.messages import FetchRequestPartition, FetchRequestTopic

if TYPE_CHECKING:
    from flowstone.broker.fetching.fetch_sessions import FetchSession


NOT_TOLD = -1


class FetchPartition:
    """One partition of a fetch session: the client's request and the last response. Notifies the session of changes."""

    __slots__ = (
        "_session",
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "max_bytes",
        "partition",
        "told_high_watermark",
        "told_last_stable_offset",
        "told_log_start_offset",
        "topic",
        "topic_id",
    )

    reader = Reader.UNCOMMITTED
    # Set when it begins to watch: without a reference cycle, objects of a single request are freed at its end.
    _session: FetchSession

    def __init__(self, topic: FetchRequestTopic, wanted: FetchRequestPartition) -> None:
        self.topic, self.topic_id, self.index = topic.topic, topic.topic_id, wanted.partition
        self.told_high_watermark = self.told_last_stable_offset = self.told_log_start_offset = NOT_TOLD
        # Looked up with the first read, and again after it was closed.
        self.partition: Partition | None = None
        self.update(wanted)

    def knows_all_of(self, partition: Partition) -> bool:
        """Return whether there is nothing to read and nothing to report, as for most partitions of a large session."""
        return (
            self.fetch_offset == self.told_high_watermark == partition.local.high_watermark.offset
            and self.told_log_start_offset == partition.log.log_start_offset
            and self.current_leader_epoch in (-1, partition.leader_epoch)
            and partition.local.fault is None
        )

    def watch(self, partition: Partition, session: FetchSession) -> None:
        self.partition, self._session = partition, session
        partition.local.watchers(self.reader).watch(self)

    def unwatch(self) -> None:
        if self.partition is not None:
            self.partition.local.watchers(self.reader).unwatch(self)

    def advanced(self, size_bytes: int) -> None:
        self._session.advanced(self, size_bytes)

    def interrupted(self) -> None:
        self._session.interrupted(self)

    def update(self, wanted: FetchRequestPartition) -> None:
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch


class CommittedFetchPartition(FetchPartition):
    """A partition of a read_committed consumer: a new high watermark is reported with the next records, not before."""

    __slots__ = ()

    reader = Reader.COMMITTED

    def knows_all_of(self, partition: Partition) -> bool:
        return (
            self.fetch_offset == self.told_last_stable_offset == partition.last_stable_offset
            and self.told_log_start_offset == partition.log.log_start_offset
            and self.current_leader_epoch in (-1, partition.leader_epoch)
            and partition.local.fault is None
        )


class ReplicaFetchPartition(FetchPartition):
    """A partition of a follower: it reads to the log's end, and gets the high watermark with the next answer.

    The fetch offset is the follower's position, which is reported to the partition even if there is nothing to read.
    A follower that names the partition again is answered even if nothing is new: it may not have taken the last answer,
    as after a decision that came first, or after its log was cut.
    """

    __slots__ = ("_high_watermark_moves", "is_position_told", "log_start_offset")

    reader = Reader.REPLICA

    def update(self, wanted: FetchRequestPartition) -> None:
        super().update(wanted)
        self.log_start_offset = wanted.log_start_offset
        self.is_position_told = False
        self.told_last_stable_offset = NOT_TOLD

    def knows_all_of(self, partition: Partition) -> bool:
        return (
            self.is_position_told
            and self.told_last_stable_offset != NOT_TOLD
            and self.fetch_offset == partition.log.log_end_offset
            and self.told_high_watermark == partition.local.high_watermark.offset
            and self.told_log_start_offset == partition.log.log_start_offset
            and self.current_leader_epoch == partition.leader_epoch
            and partition.is_leader
            and partition.local.fault is None
        )

    def watch(self, partition: Partition, session: FetchSession) -> None:
        super().watch(partition, session)
        self._high_watermark_moves = _HighWatermarkMoves(session, self)
        partition.local.watchers(Reader.UNCOMMITTED).watch(self._high_watermark_moves)

    def unwatch(self) -> None:
        super().unwatch()
        if self.partition is not None:
            self.partition.local.watchers(Reader.UNCOMMITTED).unwatch(self._high_watermark_moves)


class _HighWatermarkMoves:
    """Watches high watermarks and marks the partition as changed, where consumers read from followers."""

    __slots__ = ("_session", "_wanted")

    def __init__(self, session: FetchSession, wanted: FetchPartition) -> None:
        self._session, self._wanted = session, wanted

    def advanced(self, size_bytes: int) -> None:
        if self._session.hurries_high_watermarks:
            self._session.interrupted(self._wanted)
        else:
            self._session.unsettled(self._wanted)

    def interrupted(self) -> None:
        self._session.unsettled(self._wanted)


PARTITION_TYPES: dict[Reader, type[FetchPartition]] = {
    each.reader: each for each in (FetchPartition, CommittedFetchPartition, ReplicaFetchPartition)
}
