"""An idempotent producer of whole batches.

Stamps each batch with the producer's id and the partition's next sequence number, so that a batch sent again is written
once. Each partition has one batch in flight, and the others wait: order survives any retry. Batches of other
partitions, and other leaders, are in flight meanwhile.

Fails for good: after a `DeliveryFailed` the sequence numbers of that partition have a hole, so the producer takes no
more. To continue, create another producer.

With a transaction, the batches carry its producer id and epoch and become part of it; several producers, in processes
of their own, may write in one transaction if each partition is written by only one of them. Who began the transaction
ends it (`transactions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from types import TracebackType
from typing import Self

from flowstone.client.cluster import Cluster
from flowstone.client.connection import Address
from flowstone.client.errors import ClientError, DeliveryFailed, GaveUp, LeaderMoved, Retriable, UnknownTopic, refusal
from flowstone.client.produce_link import NOT_ANSWERED, Batch, Outcome, PartitionQueue, ProduceLink
from flowstone.client.retry_deadline import RetryDeadline, monotonic
from flowstone.client.transactions import Transaction
from flowstone.errors import ErrorCode
from flowstone.ports.network import wait_readable
from flowstone.types import TopicPartition
from flowstone.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from flowstone.wire.record_batch import (
    CHECKSUM_START,
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    TRANSACTIONAL_FLAG,
    compute_crc,
)

ACKS_ALL = -1
DEADLINE_S = 120.0
REQUEST_BYTES_MAX = 4 << 20
# Bytes of batches that are not acknowledged; beyond it `send` waits.
QUEUED_BYTES_MAX = 32 << 20
TRANSACTION_TIMEOUT_MS = 60_000  # brokers check it even without transactions

_PRODUCER = Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_POSITION = 43
_ATTRIBUTES_POSITION = 22  # of their lower byte
_CHECKSUM = Struct(">I")
_CHECKSUM_POSITION = CHECKSUM_START - _CHECKSUM.size


class Producer:
    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = True,
        transaction: Transaction | None = None,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Create a producer that retries a batch for `deadline_s`. Raises ValueError if the arguments conflict."""
        if acks not in (ACKS_ALL, NOT_ANSWERED, 1):
            raise ValueError(f"acks is 0, 1 or -1, not {acks}")
        if transaction is not None and not idempotent:
            raise ValueError("a producer with a transaction is idempotent")
        if idempotent and acks != ACKS_ALL:
            raise ValueError(f"an idempotent producer needs acks=-1, not {acks}: say idempotent=False to do without")
        self._brokers = cluster.brokers
        self._acks, self._idempotent, self._request_bytes_max = acks, idempotent, request_bytes_max
        self._deadline_s = deadline_s
        self._transaction = transaction
        self._identity = None if transaction is None else transaction.identity.pair
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._links: dict[Address, ProduceLink] = {}
        self._resting: list[tuple[float, PartitionQueue]] = []
        self._queued_bytes = 0
        self._failure: DeliveryFailed | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.close()

    def send(self, partition: TopicPartition, batch: bytearray, record_count: int) -> None:
        """Send a whole batch with base offset 0, which belongs to the producer from now on.

        Fills in the producer fields and the checksum. Waits while too much is unacknowledged. Raises DeliveryFailed,
        for this batch or one before.
        """
        self._check()
        assert len(batch) >= HEADER_BYTES
        queue = self._queues.get(partition)
        if queue is None:
            self.enlist([partition])
            queue = self._queues[partition]
        self._stamp(queue, batch, record_count)
        queue.batches.append(Batch(batch, record_count))
        queue.record_count += record_count
        self._queued_bytes += len(batch)
        if len(queue.batches) == 1:
            self._make_ready(queue)
        self._turn(wait=False)
        while self._queued_bytes > QUEUED_BYTES_MAX:
            self._turn(wait=True)

    def enlist(self, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions part of the transaction, if there is one: in one request instead of one for each `send`."""
        new = [each for each in dict.fromkeys(partitions) if each not in self._queues]
        if self._transaction is not None and new:
            self._transaction.add_partitions(new)
        for each in new:
            self._queues[each] = PartitionQueue(each, self._deadline_s)

    def flush(self) -> dict[TopicPartition, int]:
        """Wait for everything sent; return the offset after the last record written, per partition. Raises
        DeliveryFailed.

        A partition is absent if its broker sends no responses (acks=0).
        """
        self._check()
        while self._queued_bytes:
            self._turn(wait=True)
        return {each.partition: each.end_offset for each in self._queues.values() if each.end_offset is not None}

    @property
    def record_counts(self) -> dict[TopicPartition, int]:
        """The number of records that were passed to `send`, per partition."""
        return {each.partition: each.record_count for each in self._queues.values() if each.record_count}

    def close(self) -> None:
        """Close without flushing: records in flight may or may not be written."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._resting.clear()

    # Stamping

    def _stamp(self, queue: PartitionQueue, batch: bytearray, record_count: int) -> None:
        if self._idempotent:
            if self._identity is None:
                self._identity = self._init_producer_id()
            _PRODUCER.pack_into(batch, _PRODUCER_POSITION, *self._identity, queue.sequence)
            if self._transaction is not None:
                batch[_ATTRIBUTES_POSITION] |= TRANSACTIONAL_FLAG
            queue.sequence = queue.sequence + record_count & SEQUENCE_MAX
        else:
            _PRODUCER.pack_into(batch, _PRODUCER_POSITION, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
        _CHECKSUM.pack_into(batch, _CHECKSUM_POSITION, compute_crc(batch, 0, len(batch)))

    def _init_producer_id(self) -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        deadline = RetryDeadline(self._deadline_s)
        while True:
            try:
                answer = self._brokers.ask_any(request, InitProducerIdResponse, deadline.left_s)
                if answer.error_code:
                    raise refusal(answer.error_code, "a producer id was asked for")
                return answer.producer_id, answer.producer_epoch
            except Retriable as error:
                deadline.wait(error)

    # Sending

    def _turn(self, *, wait: bool) -> None:
        """Send what can be sent and receive the responses that have arrived; with `wait`, wait until something
        happens.
        """
        now = monotonic()
        rested = [queue for due, queue in self._resting if due <= now]
        self._resting = [(due, queue) for due, queue in self._resting if due > now]
        for queue in rested:
            self._make_ready(queue)
        for link in tuple(self._links.values()):
            link.send_ready()
        awaited = {stream: link for link in self._links.values() if (stream := link.stream) is not None}
        assert awaited or self._resting or not self._queued_bytes, "a batch is neither on its way nor resting"
        timeout_s = min(self._due_times(), default=now) - now if wait else 0.0
        for stream in wait_readable(list(awaited), timeout_s):
            awaited[stream].receive()
        now = monotonic()
        for link in awaited.values():
            if link.stream is not None and link.due <= now:
                link.expire()

    def _due_times(self) -> Iterator[float]:
        yield from (due for due, _ in self._resting)
        yield from (link.due for link in self._links.values() if link.stream is not None)

    def _make_ready(self, queue: PartitionQueue) -> None:
        try:
            leader = self._brokers.leader(queue.partition, queue.deadline.left_s)
        except Retriable as error:
            self._rest(queue, error)
            return
        except ClientError as error:
            raise self._failed(queue, str(error)) from error
        link = self._links.get(leader.address)
        if link is None:
            link = self._links[leader.address] = ProduceLink(
                self._brokers,
                leader.address,
                self._acks,
                None if self._transaction is None else self._transaction.identity.transactional_id,
                self._request_bytes_max,
                self._settle,
            )
        link.add(queue)

    def _settle(self, queue: PartitionQueue, outcome: Outcome) -> None:
        if isinstance(outcome, ClientError):
            self._refused(queue, outcome)
            return
        batch = queue.batches[0]
        if outcome is not None:
            code = outcome.error_code
            # Written by an attempt whose response was lost: only its offset is unknown.
            if code and code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                what = f"a batch of {batch.record_count} records and {len(batch.data)} bytes"
                self._refused(queue, refusal(code, what, outcome.error_message))
                return
            if outcome.base_offset >= 0:
                queue.end_offset = outcome.base_offset + batch.record_count
        queue.deadline.succeeded()
        queue.batches.popleft()
        self._queued_bytes -= len(batch.data)
        if queue.batches:
            self._make_ready(queue)

    def _refused(self, queue: PartitionQueue, error: ClientError) -> None:
        if not isinstance(error, Retriable):
            raise self._failed(queue, str(error)) from error
        if isinstance(error, LeaderMoved | UnknownTopic):
            self._brokers.forget(queue.partition)
        self._rest(queue, error)

    def _rest(self, queue: PartitionQueue, error: Retriable) -> None:
        try:
            delay_s = queue.deadline.delay_s(error)
        except UnknownTopic:
            raise self._failed(queue, str(error)) from error
        except GaveUp as gave_up:
            reason = f"{gave_up}; whether the last batch was written is not known"
            raise self._failed(queue, reason) from error
        self._resting.append((monotonic() + delay_s, queue))

    def _failed(self, queue: PartitionQueue, reason: str) -> DeliveryFailed:
        self._failure = DeliveryFailed(queue.partition, reason)
        self.close()
        return self._failure

    def _check(self) -> None:
        if self._failure is not None:
            raise DeliveryFailed(*self._failure.args)
