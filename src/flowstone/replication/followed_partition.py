"""A follower's state for one partition that it follows at a leader, and how a fetch names the partition."""

from __future__ import annotations

import math
from collections.abc import Iterable

from flowstone.replication.partition import Partition
from flowstone.wire.messages import FetchRequestForgottenTopic, FetchRequestPartition, FetchRequestTopic

# Topic id and index.
Key = tuple[bytes, int]


class FollowedPartition:
    __slots__ = ("asked", "failures", "is_in_session", "partition", "waits_until_s")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.failures = 0
        self.waits_until_s = -math.inf
        self.is_in_session = False
        # The leader epoch and the offset of the last request for the partition.
        self.asked = (-1, -1)

    @property
    def key(self) -> Key:
        return key_of(self.partition)


def key_of(partition: Partition) -> Key:
    return partition.topic_id, partition.topic_partition.partition


def ask_for(named: Iterable[FollowedPartition], max_bytes: int) -> list[FetchRequestTopic]:
    """Return the partitions as a fetch request names them, from their log ends on, and note what was requested."""
    topics: dict[bytes, list[FetchRequestPartition]] = {}
    for followed in named:
        partition = followed.partition
        assert partition.local.position.offset == partition.log.log_end_offset or partition.fault is not None
        epoch, offset = followed.asked = partition.leader_epoch, partition.log.log_end_offset
        followed.is_in_session = True
        topics.setdefault(partition.topic_id, []).append(
            FetchRequestPartition(
                partition=partition.topic_partition.partition,
                current_leader_epoch=epoch,
                fetch_offset=offset,
                last_fetched_epoch=partition.log.epochs.latest,
                log_start_offset=partition.log.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        )
    return [FetchRequestTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]


def forget(keys: Iterable[Key]) -> list[FetchRequestForgottenTopic]:
    """Return the partitions that the leader should forget, as a fetch request names them."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return [FetchRequestForgottenTopic(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()]
