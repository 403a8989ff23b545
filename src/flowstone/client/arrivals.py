"""Waits until a log grows, for callers that would otherwise poll its end offset.

A fetch from the end of a log is answered when there are more records. One fetch is sent to each leader, for all of its
partitions; the first response with records ends the wait. The return is only a hint: fetched records are ignored, an
error waits or returns early like a response without records, and the caller lists the end offsets in any case.
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

# The least that can be requested. Brokers send one whole batch nevertheless.
FETCH_BYTES = 1
# How late a response may come before its connection is closed.
LATE_S = 1.0


def wait_for_records(
    brokers: Brokers, ends: Mapping[TopicPartition, int], timeout_s: float, *, read_committed: bool
) -> None:
    """Return when a partition has something at or after its offset, or on timeout. Raises Retriable."""
    if not ends:  # for example a pattern that matches no topic yet
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
