"""ListOffsets: the offsets where partitions start, end, or were at a point in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flowstone.client.brokers import Brokers, Leader
from flowstone.client.connection import Address
from flowstone.client.errors import LeaderMoved, Retriable, refusal
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
)

EARLIEST = -2
LATEST = -1
NO_OFFSET = -1
CONSUMER_REPLICA_ID = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class ListedOffset(NamedTuple):
    """An offset and its timestamp, both -1 if no record is that late; only a lookup by time has a timestamp."""

    offset: int
    timestamp_ms: int


def list_offsets(
    brokers: Brokers, wanted: Mapping[TopicPartition, int], deadline: RetryDeadline, *, read_committed: bool = False
) -> dict[TopicPartition, ListedOffset]:
    found: dict[TopicPartition, ListedOffset] = {}
    while missing := [partition for partition in wanted if partition not in found]:
        try:
            for address, share in brokers.by_leader(missing, deadline.left_s).items():
                times = [(partition, leader, wanted[partition]) for partition, leader in share]
                _ask(brokers, address, times, read_committed, deadline, found)
            deadline.succeeded()
        except Retriable as error:
            deadline.wait(error)
    return found


def _ask(
    brokers: Brokers,
    address: Address,
    times: list[tuple[TopicPartition, Leader, int]],
    read_committed: bool,
    deadline: RetryDeadline,
    found: dict[TopicPartition, ListedOffset],
) -> None:
    """Add one broker's offsets to `found`; raise the first partition's error after noting the others."""
    topics: dict[str, list[ListOffsetsRequestPartition]] = {}
    for partition, leader, timestamp_ms in times:
        topics.setdefault(partition.topic, []).append(
            ListOffsetsRequestPartition(
                partition_index=partition.partition, current_leader_epoch=leader.epoch, timestamp=timestamp_ms
            )
        )
    request = ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID,
        isolation_level=READ_COMMITTED if read_committed else READ_UNCOMMITTED,
        topics=[ListOffsetsRequestTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
    )
    failure = None
    for topic in brokers.ask(address, request, ListOffsetsResponse, deadline.left_s).topics:
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            if not each.error_code:
                found[partition] = ListedOffset(each.offset, each.timestamp)
                continue
            failure = refusal(each.error_code, partition)
            if isinstance(failure, LeaderMoved):
                brokers.forget(partition)
    if failure is not None:
        raise failure
