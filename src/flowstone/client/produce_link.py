"""The produce requests in flight to one broker.

A link gathers the batches that are ready, at most one of each partition, into requests, keeps a few requests in flight,
and settles every batch with its response, in the order in which they were sent. The producer interprets the responses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from flowstone.client.brokers import Brokers
from flowstone.client.connection import Address, Connection
from flowstone.client.errors import ClientError, Disconnected, Retriable
from flowstone.client.retry_deadline import RetryDeadline, monotonic
from flowstone.ports.network import Stream
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
)

# While one request is written to disk the next is in flight.
REQUESTS_IN_FLIGHT_MAX = 3
# How long the broker may wait for other replicas, and how long its response may take after that.
PRODUCE_TIMEOUT_MS = 30_000
ANSWER_TIMEOUT_S = 40.0

NOT_ANSWERED = 0  # the acks of a producer that requests no responses


class Batch(NamedTuple):
    data: bytearray
    record_count: int


class PartitionQueue:
    """The batches of one partition, in order; the first may be in flight."""

    __slots__ = ("batches", "deadline", "end_offset", "partition", "record_count", "sequence")

    def __init__(self, partition: TopicPartition, deadline_s: float) -> None:
        self.partition, self.deadline = partition, RetryDeadline(deadline_s)
        self.batches: deque[Batch] = deque()
        self.sequence = 0  # of the next record
        self.record_count = 0  # of all batches ever added
        self.end_offset: int | None = None


# The outcome of a queue's first batch: the broker's response, None with acks=0, or the error.
Outcome = ProduceResponsePartition | ClientError | None
Settle = Callable[[PartitionQueue, Outcome], None]


class ProduceLink:
    def __init__(
        self,
        brokers: Brokers,
        address: Address,
        acks: int,
        transactional_id: str | None,
        request_bytes_max: int,
        settle: Settle,
    ) -> None:
        self._brokers, self._address, self._acks = brokers, address, acks
        self._transactional_id = transactional_id
        self._request_bytes_max, self._settle = request_bytes_max, settle
        self._connection: Connection | None = None
        self._ready: deque[PartitionQueue] = deque()
        self._requests: deque[tuple[list[PartitionQueue], float]] = deque()

    @property
    def stream(self) -> Stream | None:
        """Return the stream that becomes readable with a response; None while none is expected."""
        return self._connection.stream if self._connection is not None and self._requests else None

    @property
    def due(self) -> float:
        """Return when the oldest request must have been answered."""
        return self._requests[0][1]

    def add(self, queue: PartitionQueue) -> None:
        """Add a queue whose first batch is to be sent; it is settled exactly once."""
        self._ready.append(queue)

    def send_ready(self) -> None:
        while self._ready and len(self._requests) < REQUESTS_IN_FLIGHT_MAX:
            queues = self._gather()
            self._requests.append((queues, monotonic() + ANSWER_TIMEOUT_S))
            try:
                if self._connection is None:
                    self._connection = self._brokers.borrow(self._address, queues[0].deadline.left_s)
                self._connection.send(self._request(queues), ANSWER_TIMEOUT_S, is_answered=self._acks != NOT_ANSWERED)
            except ClientError as error:
                self._broken(error)
                return
            if self._acks == NOT_ANSWERED:
                self._requests.pop()
                for queue in queues:
                    self._settle(queue, None)

    def receive(self) -> None:
        """Receive the responses that have begun to arrive."""
        assert self._connection is not None
        try:
            answer = self._connection.receive(ProduceResponse, ANSWER_TIMEOUT_S)
        except ClientError as error:
            self._broken(error)
            return
        queues, _ = self._requests.popleft()
        results = {
            TopicPartition(topic.name, each.index): each
            for topic in answer.responses
            for each in topic.partition_responses
        }
        for queue in queues:
            self._settle(queue, results.get(queue.partition) or Retriable("missing in the broker's answer"))

    def expire(self) -> None:
        """Fail the requests in flight, because the oldest was not answered in time."""
        self._broken(Disconnected(f"no answer from {self._address} within {ANSWER_TIMEOUT_S:g} s"))

    def close(self) -> None:
        """Close the link; what is in flight stays unsettled."""
        self._requests.clear()
        self._ready.clear()
        self._drop()

    def _gather(self) -> list[PartitionQueue]:
        queues = [self._ready.popleft()]
        size_bytes = len(queues[0].batches[0].data)
        while self._ready:
            size_bytes += len(self._ready[0].batches[0].data)
            if size_bytes > self._request_bytes_max:
                break
            queues.append(self._ready.popleft())
        return queues

    def _request(self, queues: list[PartitionQueue]) -> ProduceRequest:
        topics: dict[str, list[ProduceRequestPartition]] = {}
        for queue in queues:
            part = ProduceRequestPartition(index=queue.partition.partition, records=queue.batches[0].data)
            topics.setdefault(queue.partition.topic, []).append(part)
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[ProduceRequestTopic(name=name, partition_data=parts) for name, parts in topics.items()],
        )

    def _broken(self, error: ClientError) -> None:
        """Fail the requests in flight. A retry with the same sequence numbers shows whether they were written."""
        self._drop()
        lost = [queue for queues, _ in self._requests for queue in queues]
        self._requests.clear()
        for queue in (*lost, *self._ready):
            self._brokers.forget(queue.partition)
        ready, self._ready = self._ready, deque()
        for queue in (*lost, *ready):
            self._settle(queue, error)

    def _drop(self) -> None:
        if self._connection is not None:
            self._brokers.give_back(self._connection)
            self._connection = None
