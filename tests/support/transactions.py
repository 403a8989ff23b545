"""Requests of a transactional producer, by hand: each method asks one API and returns what came back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from flowstone.wire.end_markers import read_end_marker
from flowstone.wire.record_batch import parse_header
from tests.support.wire_client import Client, whole_batches

TIMEOUT_MS = 60_000
WAIT_S = 20.0
TRANSACTION = 1
# What a client asks again after.
BUSY = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class TransactionClient:
    """A producer with a transactional id, on a connection to its coordinator."""

    def __init__(self, client: Client, transactional_id: str = "tx") -> None:
        self.client, self.transactional_id = client, transactional_id
        self.producer_id, self.producer_epoch = -1, -1

    def find_coordinator(self) -> Any:
        request = m.FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=[self.transactional_id])
        return self.client.ask(4, request).coordinators[0]

    def init(self, version: int = 5, timeout_ms: int = TIMEOUT_MS, **more: Any) -> Any:
        request = m.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, **more
        )
        return self.client.ask(version, request)

    def begin(self, version: int = 5) -> None:
        """Become the producer of the transactional id."""
        assert self.find_coordinator().error_code == ErrorCode.NONE
        deadline_s = time.monotonic() + WAIT_S
        while (answer := self.init(version)).error_code in BUSY and time.monotonic() < deadline_s:
            pass
        assert answer.error_code == ErrorCode.NONE
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    @property
    def pair(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch

    def add(self, *partitions: tuple[str, Sequence[int]], version: int = 3) -> list[int]:
        """The error codes of the partitions, in order."""
        topics = [m.AddPartitionsToTxnRequestTopic(name=name, partitions=indexes) for name, indexes in partitions]
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=topics,
        )
        answer = self.client.ask(version, request)
        results = (each for topic in answer.results_by_topic_v3_and_below for each in topic.results_by_partition)
        return [each.partition_error_code for each in results]

    def add_as_broker(self, *partitions: tuple[str, Sequence[int]], verify_only: bool, version: int = 5) -> list[int]:
        transaction = m.AddPartitionsToTxnRequestTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            verify_only=verify_only,
            topics=[m.AddPartitionsToTxnRequestTopic(name=name, partitions=each) for name, each in partitions],
        )
        answer = self.client.ask(version, m.AddPartitionsToTxnRequest(transactions=[transaction]))
        results = (
            each
            for transaction in answer.results_by_transaction
            for topic in transaction.topic_results
            for each in topic.results_by_partition
        )
        return [each.partition_error_code for each in results]

    def add_offsets(self, group_id: str, version: int = 4) -> int:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group_id,
        )
        return int(self.client.ask(version, request).error_code)

    def end(self, *, commit: bool, version: int = 5, epoch: int | None = None) -> Any:
        request = m.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch if epoch is None else epoch,
            committed=commit,
        )
        return self.client.ask(version, request)

    def describe(self) -> Any:
        request = m.DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        return self.client.ask(0, request).transaction_states[0]

    def wait_for_state(self, state: str) -> Any:
        """Describe the transactional id until it has the state: nobody tells when markers are written."""
        deadline_s = time.monotonic() + WAIT_S
        while (described := self.describe()).transaction_state != state and time.monotonic() < deadline_s:
            pass
        if described.transaction_state == state:
            return described
        raise AssertionError(f"{self.transactional_id} is {described.transaction_state}, not {state}")


def markers(client: Client, topic: str, partition: int = 0) -> list[tuple[int, int, bool]]:
    """The end markers in a partition: producer id, epoch, and whether they commit."""
    wanted = m.FetchRequestPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [m.FetchRequestTopic(topic=topic, partitions=[wanted])]
    request = m.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics, session_epoch=-1)
    (answer,) = client.ask(11, request).responses[0].partitions
    assert answer.error_code == ErrorCode.NONE
    return list(_markers(bytes(answer.records or b"")))


def eventually(condition: Callable[[], bool]) -> None:
    """Return when the condition holds. Each look at it asks a broker, so that it needs no pause."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never came to hold"


def _markers(data: bytes) -> Iterator[tuple[int, int, bool]]:
    for batch in whole_batches(data):
        header = parse_header(batch)
        marker = read_end_marker(batch, 0, header) if header.is_control else None
        if marker is not None:
            yield header.producer_id, header.producer_epoch, marker.is_commit
