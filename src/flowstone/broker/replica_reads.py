"""What a leader answers to a follower's fetch: records up to the log's end, or where the two logs part ways.

Only a broker of the cluster is a follower, in the life that the cluster knows it in: the id and the epoch must be those
of its registration. Whether it has a replica of the partition is the partition's to say.
"""

from __future__ import annotations

from flowstone.broker.fetch_sessions import FetchPartition, ReplicaFetchPartition
from flowstone.cluster.image import ClusterImage
from flowstone.errors import ApiError, ErrorCode
from flowstone.replication.partition import Partition
from flowstone.replication.replica import Watcher
from flowstone.replication.state import DivergingEpoch, ReplicaFetch
from flowstone.wire.messages import FetchRequest, FetchResponseEpochEndOffset, FetchResponsePartition

NO_REPLICA = -1


class ReplicaReader:
    """One broker's fetches."""

    def __init__(self, replica_id: int, replica_epoch: int) -> None:
        self._replica_id, self._replica_epoch = replica_id, replica_epoch

    def is_known(self, image: ClusterImage) -> bool:
        broker = image.brokers.get(self._replica_id)
        return broker is not None and broker.epoch == self._replica_epoch

    def read(
        self, partition: Partition, wanted: FetchPartition, max_bytes: int, *, at_least_one: bool
    ) -> FetchResponsePartition:
        """May raise NotCached. ApiError for the partition's part of the answer."""
        fetch = ReplicaFetch(
            self._replica_id,
            self._replica_epoch,
            wanted.fetch_offset,
            wanted.last_fetched_epoch,
            wanted.current_leader_epoch,
        )
        result = FetchResponsePartition(partition_index=wanted.index, records=b"")
        try:
            found = partition.read_as_replica(fetch, max_bytes, at_least_one=at_least_one)
            assert isinstance(wanted, ReplicaFetchPartition), "a session is a follower's or a consumer's"
            wanted.is_position_told = True
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            result.error_code = error.code  # the follower has to know where it can start over
        else:
            if isinstance(found, DivergingEpoch):
                result.diverging_epoch = FetchResponseEpochEndOffset(epoch=found.epoch, end_offset=found.end_offset)
            elif found is not None:
                result.records = found
        result.high_watermark = result.last_stable_offset = partition.high_watermark.offset
        result.log_start_offset = partition.log.log_start_offset
        return result


class LogEnd:
    """Lets a fetch without a session wait for the log's end to move."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def watch(self, watcher: Watcher) -> None:
        self._partition.watch_end(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._partition.unwatch_end(watcher)


def replica_reader(request: FetchRequest) -> ReplicaReader | None:
    """None for a consumer's fetch. Versions before 15 carry no epoch, and are nobody's we know."""
    state = request.replica_state
    if state is not None and state.replica_id != NO_REPLICA:
        return ReplicaReader(state.replica_id, state.replica_epoch)
    return ReplicaReader(request.replica_id, NO_REPLICA) if request.replica_id != NO_REPLICA else None
