"""Waiting until a log goes on: for whoever would otherwise ask again and again where it ends.

A fetch from the end of a log is answered when there is more. One goes to each leader, for all of its partitions; the
first that brings records ends the wait. It is a hint and no more: nothing that was fetched is looked at, an error
waits or returns early like an answer without records, and the caller asks where the logs end either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowstone.client.brokers import REQUEST_TIMEOUT_S, Brokers, Leader
from flowstone.client.connection import Connection
from flowstone.client.fetching import NO_SESSION_EPOCH
from flowstone.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from flowstone.client.retry_deadline import monotonic
from flowstone.ports.network import wait_readable
from flowstone.types import TopicPartition
from flowstone.wire.messages import FetchRequest, FetchRequestPartition, FetchRequestTopic, FetchResponse

# As little as can be asked for. Brokers send one whole batch all the same.
FETCH_BYTES = 1
# What an answer may come late, before its connection is given up.
LATE_S = 1.0


def wait_for_records(
    brokers: Brokers, ends: Mapping[TopicPartition, int], timeout_s: float, *, read_committed: bool
) -> None:
    """Returns when a partition has something at or after its offset, or after `timeout_s`. Retriable."""
    if not ends:  # a pattern without topics, for now
        wait_readable((), timeout_s)
    asked: list[Connection] = []
    try:
        for address, share in brokers.by_leader(ends, REQUEST_TIMEOUT_S).items():
            asked.append(brokers.borrow(address, REQUEST_TIMEOUT_S))
            asked[-1].send(_request(share, ends, timeout_s, read_committed), REQUEST_TIMEOUT_S)
        _wait(asked, timeout_s + LATE_S)
    finally:
        for connection in asked:
            brokers.give_back(connection)


def _wait(asked: Iterable[Connection], timeout_s: float) -> None:
    deadline_s = monotonic() + timeout_s
    waiting = {connection.stream: connection for connection in asked}
    while waiting:
        ready = wait_readable(list(waiting), deadline_s - monotonic())
        answers = [waiting.pop(stream).receive(FetchResponse, REQUEST_TIMEOUT_S) for stream in ready]
        if not ready or any(map(_has_records, answers)):
            return


def _request(
    share: Iterable[tuple[TopicPartition, Leader]],
    ends: Mapping[TopicPartition, int],
    timeout_s: float,
    read_committed: bool,
) -> FetchRequest:
    topics: dict[str, list[FetchRequestPartition]] = {}
    for partition, leader in share:
        topics.setdefault(partition.topic, []).append(
            FetchRequestPartition(
                partition=partition.partition,
                current_leader_epoch=leader.epoch,
                fetch_offset=ends[partition],
                partition_max_bytes=FETCH_BYTES,
            )
        )
    return FetchRequest(
        max_wait_ms=int(timeout_s * 1000),
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=READ_COMMITTED if read_committed else READ_UNCOMMITTED,
        session_epoch=NO_SESSION_EPOCH,
        topics=[FetchRequestTopic(topic=name, partitions=each) for name, each in topics.items()],
    )


def _has_records(answer: FetchResponse) -> bool:
    return any(part.records for topic in answer.responses for part in topic.partitions)
