"""Fetches the record batches of an offset range of one partition, in order, through changes of its leader.

While a response is being used the next request is on the wire. The next offset comes from the last batch's header, the
sizes of batches from theirs; no record is read, and the decoder verifies checksums.

Rules:
- the range ends where a batch reaches its end, or where the log proves that there is nothing left: an answer without
  records from below the high watermark (the last stable offset for read_committed) means that compaction took them;
- a log that starts after the position has lost records, and is `OffsetsLost`: nothing is ever skipped for it;
- a log that does not reach the end of the range yet is waited for;
- a topic whose id is known is fetched by its id, so that no record of a topic that was created again is taken for one
  of it. Brokers before Kafka 3.1 cannot do that: the id is compared before the first and after the last fetch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from flowstone.client.brokers import REQUEST_TIMEOUT_S, Brokers
from flowstone.client.connection import FETCH_BY_ID, Connection
from flowstone.client.errors import (
    BadAnswer,
    OffsetsLost,
    OffsetsNotWritten,
    Retriable,
    TopicRecreated,
    UnknownTopic,
    refusal,
)
from flowstone.client.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from flowstone.client.response_buffers import ReceiveBuffers
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.client.topics import describe_topics
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID, TopicPartition
from flowstone.wire.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)
from flowstone.wire.record_batch import BATCH_LENGTH_MIN, HEADER_BYTES, LOG_OVERHEAD, CorruptBatch, parse_header

# Measured from the page cache: with 1 MB a quarter of the rate is lost to request turns, and above 4 MB the bytes leave
# the processor's cache before they are used.
FETCH_BYTES_MAX = 4 << 20
FETCH_BYTES_MIN = 128 << 10
FETCH_WAIT_MS = 500
NO_SESSION_EPOCH = -1
# How much more than the records so far suggest is requested, so that the end of a range rarely takes another request.
MARGIN = 1.25

_BATCH_LENGTH = Struct(">8xi")


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class Fetched(NamedTuple):
    """Whole batches. The first may begin below the range, the last may end beyond it: the decoder trims them."""

    records: memoryview
    aborted: tuple[AbortedTransaction, ...]
    log_start_offset: int
    high_watermark: int


class RangeReader:
    """Reads the offsets from `start` to before `end` once."""

    def __init__(
        self,
        brokers: Brokers,
        buffers: ReceiveBuffers,
        partition: TopicPartition,
        start: int,
        end: int,
        deadline: RetryDeadline,
        *,
        read_committed: bool,
        topic_id: bytes | None = None,
    ) -> None:
        self._brokers, self._buffers, self._deadline = brokers, buffers, deadline
        self._partition, self._topic_id, self._read_committed = partition, topic_id, read_committed
        self._position, self._end = start, end
        self._bytes_per_offset = 0.0
        self._connection: Connection | None = None
        self._is_by_name = False  # the fetches were by the topic's name

    def read(self) -> Iterator[Fetched]:
        try:
            while self._position < self._end:
                fetched = self._next()
                if fetched is not None:
                    yield fetched
            if self._is_by_name and self._topic_id is not None:
                self._check_id()
        finally:
            self._release()

    def _next(self) -> Fetched | None:
        try:
            if self._connection is None:
                self._send()
            assert self._connection is not None
            answer = self._connection.receive(FetchResponse, REQUEST_TIMEOUT_S, self._buffers)
            fetched = self._take(answer)
        except Retriable as error:
            self._release()
            self._deadline.wait(error)
            return None
        self._deadline.succeeded()
        if self._position < self._end:
            # A failure closes the connection; the next attempt uses another.
            with suppress(Retriable):
                self._send()
        return fetched

    def _send(self) -> None:
        leader = self._brokers.leader(self._partition, self._deadline.left_s)
        if self._connection is None:
            self._connection = self._brokers.borrow(leader.address, self._deadline.left_s)
        by_id = self._topic_id is not None and self._connection.fetches_by_id
        if self._topic_id is not None and not by_id and not self._is_by_name:
            self._check_id()
        self._is_by_name = not by_id
        max_bytes = self._wanted_bytes()
        wanted = FetchRequestPartition(
            partition=self._partition.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=self._position,
            partition_max_bytes=max_bytes,
        )
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=READ_COMMITTED if self._read_committed else READ_UNCOMMITTED,
            session_epoch=NO_SESSION_EPOCH,
            topics=[
                FetchRequestTopic(
                    topic=self._partition.topic, topic_id=self._topic_id or ZERO_UUID, partitions=[wanted]
                )
            ],
        )
        try:
            self._connection.send(request, REQUEST_TIMEOUT_S, versions=FETCH_BY_ID if by_id else None)
        except Retriable:
            self._release()
            raise

    def _wanted_bytes(self) -> int:
        """Return how much to request: the range may be far larger than one response, or far smaller than the log."""
        if not self._bytes_per_offset:
            return FETCH_BYTES_MAX
        left_bytes = int((self._end - self._position) * self._bytes_per_offset * MARGIN)
        return min(max(left_bytes, FETCH_BYTES_MIN), FETCH_BYTES_MAX)

    def _take(self, answer: FetchResponse) -> Fetched | None:
        """Advance the position past a response's records; return them, or None if there are none."""
        part = self._part(answer)
        records = part.records
        assert records is None or isinstance(records, memoryview)
        if not records:
            self._pass_gap(part)
            return None
        try:
            size_bytes, first_offset, next_offset = measure_batches(records)
        except CorruptBatch as error:
            raise BadAnswer(
                f"{self._partition}: damaged bytes after offset {self._position}: {error.message}"
            ) from error
        if part.log_start_offset > self._position and first_offset > self._position:
            raise OffsetsLost(self._partition, self._position, part.log_start_offset)
        if next_offset <= self._position:
            raise BadAnswer(f"{self._partition}: asked for offset {self._position}, got batches up to {next_offset}")
        self._bytes_per_offset = size_bytes / (next_offset - min(first_offset, self._position))
        self._position = next_offset
        aborted = tuple(
            AbortedTransaction(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()
        )
        return Fetched(records[:size_bytes], aborted, part.log_start_offset, part.high_watermark)

    def _part(self, answer: FetchResponse) -> FetchResponsePartition:
        """Return the partition's part of a response. Raises its error."""
        if answer.error_code:
            raise refusal(answer.error_code, self._partition)
        for topic in answer.responses:
            is_topic = topic.topic == self._partition.topic if self._is_by_name else topic.topic_id == self._topic_id
            for part in topic.partitions:
                if not is_topic or part.partition_index != self._partition.partition:
                    continue
                if part.error_code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID):
                    self._check_id()
                    raise Retriable(f"{self._partition}: the broker does not know the topic's id yet")
                if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise self._explain_out_of_range()
                if part.error_code:
                    self._brokers.forget(self._partition)
                    raise refusal(part.error_code, self._partition)
                return part
        # The broker leaves out a partition whose bytes are evicted from its page cache again and again.
        raise Retriable(f"{self._partition} is missing in the answer")

    def _check_id(self) -> None:
        """Raise TopicRecreated if the topic has another id by now, and UnknownTopic if it does not exist."""
        self._brokers.forget(self._partition)
        found = describe_topics(self._brokers, [self._partition.topic], RetryDeadline(self._deadline.left_s))
        topic = found.get(self._partition.topic)
        if topic is None:
            raise UnknownTopic(f"there is no topic {self._partition.topic}: check the name, or create it first")
        if topic.topic_id not in (None, self._topic_id):
            raise TopicRecreated(self._partition.topic)

    def _pass_gap(self, part: FetchResponsePartition) -> None:
        bound = part.last_stable_offset if self._read_committed else part.high_watermark
        if part.log_start_offset > self._position:
            raise OffsetsLost(self._partition, self._position, part.log_start_offset)
        if bound <= self._position:
            raise Retriable(f"{self._partition} ends at {bound}, and records up to {self._end} were to be read")
        self._position = min(bound, self._end)

    def _explain_out_of_range(self) -> Exception:
        deadline = RetryDeadline(self._deadline.left_s)
        ends = [
            list_offsets(self._brokers, {self._partition: place}, deadline)[self._partition].offset
            for place in (EARLIEST, LATEST)
        ]
        log_start, log_end = ends
        if self._position < log_start:
            return OffsetsLost(self._partition, self._position, log_start)
        if self._position > log_end:
            return OffsetsNotWritten(self._partition, self._position, log_end)
        return refusal(ErrorCode.OFFSET_NOT_AVAILABLE, self._partition)

    def _release(self) -> None:
        if self._connection is not None:
            self._brokers.give_back(self._connection)
            self._connection = None


def measure_batches(records: memoryview) -> tuple[int, int, int]:
    """Return the whole batches, their first offset, and the offset after the last. Raises CorruptBatch."""
    available_bytes = len(records)
    last, end = -1, 0
    read_length = _BATCH_LENGTH.unpack_from
    while available_bytes - end >= HEADER_BYTES:
        (length,) = read_length(records, end)
        if length < BATCH_LENGTH_MIN:
            raise CorruptBatch(f"batch length {length} is below {BATCH_LENGTH_MIN}")
        if length + LOG_OVERHEAD > available_bytes - end:
            break
        last, end = end, end + length + LOG_OVERHEAD
    if last < 0:
        raise CorruptBatch("not one whole batch")
    return end, parse_header(records).base_offset, parse_header(records, last).next_offset
