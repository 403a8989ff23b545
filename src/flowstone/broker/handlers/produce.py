"""Produce, versions 3 to 13: appends one record batch per partition, unchanged.

acks=0 has no response; acks=1 is answered after the write, acks=all once every batch is committed or the request's
timeout is over. Each partition has its own error, and a refused one does not affect the others. If a batch is refused
because of some of its records, the response names them (KIP-467), so that a producer drops only those.

Batches are appended in the order of the request. If a worker must prepare a batch first (`preparing`), or the request
holds the loop for longer than `SLICE_S`, a coroutine continues with a copy of the rest of the request. The connection's
next request waits until all of this one is appended.

A client that reaches a broker that does not lead a partition is told who leads, since version 10 with the address
(KIP-951).

The first batch of a transaction in a partition waits in such a coroutine until the transaction coordinator has answered
(`transaction_verification`). The version of the request selects the protocol: up to version 11 the partition must
already be part of the transaction, from version 12 on it is added now.

Deviations: a transactional batch in a request without a transactional id is refused alone; Kafka refuses the whole
request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple

from flowstone.broker.loop.time_slices import TimeSlices, yield_to_loop
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.parked import ParkedProduce, Uncommitted
from flowstone.broker.requests.partition_lookup import as_seen_by_the_cluster, node_endpoints, partition_state
from flowstone.broker.requests.transaction_verification import ProducedTransaction, is_transactional
from flowstone.cluster.decisions.topic_names import INTERNAL_TOPICS
from flowstone.errors import ApiError, ErrorCode, ProtocolError, RecordError
from flowstone.log.partition.partition_log import NeedsWorker, Timestamps, WrittenAhead
from flowstone.log.partition.producer_state import UNVERIFIED
from flowstone.promise import Promise
from flowstone.replication.partition import ACKS_ALL, Partition
from flowstone.types import Bytes
from flowstone.wire.compression import Codec
from flowstone.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponseLeader,
    ProduceResponseNodeEndpoint,
    ProduceResponsePartition,
    ProduceResponseRecordError,
    ProduceResponseTopic,
)
from flowstone.wire.record_batch import parse_header

FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_LEADERS = 10
_VALID_ACKS = (0, 1, ACKS_ALL)
# The time slice of a request on the event loop.
SLICE_S = 0.01
# The largest batches that are copied if they are appended later.
COPIED_BYTES_MAX = 4 << 20
# Invalid records that one response lists, over all batches; there may be ten million.
RECORD_ERRORS_TOLD_MAX = 2_000
# A request of more batches is handled by a coroutine from the start: decoding took a time slice already.
BATCHES_AT_ONCE_MAX = 256

Produced = ProduceResponse | Promise[ProduceResponse] | None


def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Produced | Coroutine[Any, Any, Produced]:
    produce = _Produce(services, request, context)
    topics = request.topic_data
    batch_count = len(topics[0].partition_data) if len(topics) == 1 else sum(len(t.partition_data) for t in topics)
    if batch_count > BATCHES_AT_ONCE_MAX:
        return produce.append_later([_Later(topic, wanted) for topic in topics for wanted in topic.partition_data])
    if request.transactional_id is not None:
        produce.note_producers([wanted for topic in topics for wanted in topic.partition_data])
    later: list[_Later] = []
    slice_ends = services.clock.monotonic() + SLICE_S if batch_count > 1 else None
    for topic in topics:
        for wanted in topic.partition_data:
            is_over = later or (slice_ends is not None and services.clock.monotonic() > slice_ends)
            if is_over or not produce.append(topic, wanted):
                later.append(_Later(topic, wanted))
    return produce.append_later(later) if later else produce.finish()


class _Later(NamedTuple):
    """A batch of the request that is appended later."""

    topic: ProduceRequestTopic
    wanted: ProduceRequestPartition


class _Produce:
    """A produce request in progress: its appended batches, those not yet committed, and the response so far."""

    def __init__(self, services: Services, request: ProduceRequest, context: RequestContext) -> None:
        # Not the request: its records are views of a buffer that others use once this is parked.
        self._services, self._acks, self._timeout_ms = services, request.acks, request.timeout_ms
        self._version, self._session = context.api_version, context.session
        self._refusal: ApiError | None = None  # what speaks against the request as a whole; each partition is told
        if request.acks not in _VALID_ACKS:
            told = f"acks is 0, 1 or -1, not {request.acks}"
            self._refusal = ApiError(ErrorCode.INVALID_REQUIRED_ACKS, told)
        elif request.acks == ACKS_ALL and services.waiting.is_full:
            told = "too many requests are waiting; try again"
            self._refusal = ApiError(ErrorCode.REQUEST_TIMED_OUT, told)
        self._transaction: ProducedTransaction | None = None
        if request.transactional_id is not None:
            self._transaction = ProducedTransaction(
                services.verification, services.transactions, request.transactional_id, self._version
            )
        self._topics: list[ProduceResponseTopic] = []
        self._last_topic: ProduceRequestTopic | None = None
        self._results: list[ProduceResponsePartition] = []  # of the last topic
        # The offset up to which each partition must be committed, and the results that wait for it.
        self._uncommitted: dict[tuple[Partition, int], tuple[int, list[ProduceResponsePartition]]] = {}
        self._is_led_by_another = False
        self._record_errors_left = RECORD_ERRORS_TOLD_MAX

    def append(self, topic: ProduceRequestTopic, wanted: ProduceRequestPartition) -> bool:
        """Append a batch, or note in the response why it is refused; return False if it must wait."""
        partition: Partition | None = None
        result = ProduceResponsePartition(index=wanted.index)
        try:
            partition, records = self._check(topic, wanted)
            if self._services.preparing.is_due(partition, records):
                return False
            if self._transaction is not None and self._transaction.is_due(partition, records):
                return False
            self._append(partition, result, records, None)
        except NeedsWorker:
            return False
        except ApiError as error:
            self._refuse(result, self._as_seen(error, topic, wanted), partition)
        self._add(topic, result)
        return True

    def note_producers(self, batches: Iterable[ProduceRequestPartition]) -> None:
        """Record the producer of the transactional batches; refuse the whole request if they have several producers."""
        try:
            for wanted in batches:
                if self._transaction is not None and wanted.records is not None:
                    self._transaction.note(wanted.records)
        except ApiError as error:
            self._refusal = self._refusal or error

    def _add(self, topic: ProduceRequestTopic, result: ProduceResponsePartition) -> None:
        """Add a partition's result to the response, in the order of the request."""
        if topic is not self._last_topic:
            self._last_topic, self._results = topic, []
            self._topics.append(
                ProduceResponseTopic(name=topic.name, topic_id=topic.topic_id, partition_responses=self._results)
            )
        self._results.append(result)

    def _check(self, topic: ProduceRequestTopic, wanted: ProduceRequestPartition) -> tuple[Partition, Bytes]:
        """Return the partition and the batch. Raises ApiError if the request is refused before the batch is read."""
        if self._refusal is not None:
            raise self._refusal
        partition, records = self._find(topic, wanted.index), wanted.records
        if partition.topic_partition.topic in INTERNAL_TOPICS:  # whatever is in it its coordinator takes for its own
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "only coordinators append to internal topics")
        if records is None:
            raise RecordError(ErrorCode.INVALID_RECORD, "a produce without records")
        self._services.producers.check(partition.log, records, self._session.peer)
        self._services.disk_floor.admit(partition.log, len(records))
        if self._version < FIRST_VERSION_WITH_ZSTD and parse_header(records).codec is Codec.ZSTD:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs version 7 of Produce")
        return partition, records

    def _find(self, topic: ProduceRequestTopic, index: int) -> Partition:
        if self._version >= FIRST_VERSION_WITH_TOPIC_IDS:
            return self._services.partitions.get_by_id(topic.topic_id, index)
        return self._services.partitions.get(topic.name, index)

    def _as_seen(self, error: ApiError, topic: ProduceRequestTopic, wanted: ProduceRequestPartition) -> ApiError:
        has_no_transaction = self._transaction is None and self._refusal is None
        if error.code is ErrorCode.INVALID_TXN_STATE and has_no_transaction and is_transactional(wanted.records or b""):
            told = "a transactional batch needs a request with a transactional id"
            return ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, told)
        image = self._services.metadata.image
        found = image.topics.get(topic.name) if topic.name else image.topics_by_id.get(topic.topic_id)
        return as_seen_by_the_cluster(error, found, wanted.index)

    def finish(self) -> Produced:
        self._last_topic = None  # its records are views of the request's bytes too
        if self._acks == 0:
            # There is no response to hold an error: the producer learns of it by a closed connection, as in Kafka.
            results = (result for topic in self._topics for result in topic.partition_responses)
            error = next((result.error_code for result in results if result.error_code), None)
            if error is not None:
                raise ProtocolError(f"a produce without acknowledgement was refused: {ErrorCode(error).name}")
            return None
        # Each holds this request: kept here too, they would keep each other, and the records, for a garbage collector.
        waiting, self._uncommitted = self._uncommitted, {}
        if not waiting:
            return self._respond()
        uncommitted = [
            Uncommitted(partition, next_offset, epoch, partial(self._not_committed, results))
            for (partition, epoch), (next_offset, results) in waiting.items()
        ]
        return ParkedProduce(self._services.waiting, uncommitted, self._timeout_ms, self._respond)

    def append_later(self, later: list[_Later]) -> Produced | Coroutine[Any, Any, Produced]:
        """Append the batches in a coroutine, from a copy: the request's bytes last only until the handler returns.

        Copying large batches would take long: they keep the buffer in which they were received.
        """
        size_bytes = sum(len(wanted.records) for _, wanted in later if wanted.records is not None)
        try:
            release = self._hold(later, size_bytes)
        except ApiError as error:
            for topic, wanted in later:
                result = ProduceResponsePartition(index=wanted.index)
                self._refuse(result, error)
                self._add(topic, result)
            return self.finish()
        if size_bytes <= COPIED_BYTES_MAX or not self._session.take_frame(size_bytes):
            for _, wanted in later:
                if wanted.records is not None:
                    wanted.records = bytes(wanted.records)
        return self._append_held(later, release)

    def _hold(self, later: list[_Later], size_bytes: int) -> Callable[[], None]:
        """Reserve memory for the waiting request; return a function that releases it. Raises ApiError at the limit."""
        preparing, verification, transaction = self._services.preparing, self._services.verification, self._transaction
        if transaction is not None:
            self.note_producers(wanted for _, wanted in later)
            producer_id = transaction.producer_id
            if producer_id is not None:
                verification.hold(producer_id, size_bytes)
                return partial(verification.release, producer_id, size_bytes)
        preparing.reserve(size_bytes)
        return partial(preparing.release, size_bytes)

    async def _append_held(self, later: list[_Later], release: Callable[[], None]) -> Produced:
        """Append the batches in order; return the response, or a promise of it while they are not committed."""
        try:
            if self._transaction is None or self._refusal is not None:
                await self._append_all(later)
            else:
                async with self._transaction.turn():
                    await self._transaction.verify(self._found(later))
                    await self._append_all(later)
        finally:
            release()
        return self.finish()

    async def _found(self, later: list[_Later]) -> AsyncIterator[tuple[Partition, Bytes]]:
        """Yield the batches whose partitions are led here; the others are refused later, in their order."""
        async for topic, wanted in TimeSlices(self._services.clock.monotonic).over(later):
            try:
                partition = self._find(topic, wanted.index)
            except ApiError:
                continue
            if partition.is_leader and wanted.records is not None:
                yield partition, wanted.records

    async def _append_all(self, later: list[_Later]) -> None:
        monotonic = self._services.clock.monotonic
        slice_ends = 0.0
        for topic, wanted in later:
            if monotonic() > slice_ends:
                await yield_to_loop()
                slice_ends = monotonic() + SLICE_S
            if not self.append(topic, wanted):
                await self._append_prepared(topic, wanted)
            wanted.records = None  # the request is kept until it is answered, its records need not be

    async def _append_prepared(self, topic: ProduceRequestTopic, wanted: ProduceRequestPartition) -> None:
        partition: Partition | None = None
        result = ProduceResponsePartition(index=wanted.index)
        try:
            partition, records = self._check(topic, wanted)
            await self._services.preparing.append(partition, records, partial(self._append, partition, result))
        except ApiError as error:
            self._refuse(result, self._as_seen(error, topic, wanted), partition)
        self._add(topic, result)

    def _respond(self) -> ProduceResponse:
        response = ProduceResponse(responses=self._topics)
        if self._is_led_by_another and self._version >= FIRST_VERSION_WITH_LEADERS:
            self._tell_leaders(response)
        return response

    def _tell_leaders(self, response: ProduceResponse) -> None:
        image = self._services.metadata.image
        leaders = []
        for topic in self._topics:
            for result in topic.partition_responses:
                state = partition_state(image, topic.name, topic.topic_id, result.index)
                if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and state is not None:
                    result.current_leader = ProduceResponseLeader(
                        leader_id=state.leader, leader_epoch=state.leader_epoch
                    )
                    leaders.append(state.leader)
        response.node_endpoints = [
            ProduceResponseNodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in node_endpoints(image, leaders, self._session.listener_name)
        ]

    def _append(
        self,
        partition: Partition,
        result: ProduceResponsePartition,
        records: Bytes,
        opened: Timestamps | None,
        written: WrittenAhead | None = None,
    ) -> None:
        acks, transaction = self._acks, self._transaction
        version = UNVERIFIED if transaction is None else transaction.version_for(partition, records)
        base_offset, last_offset, append_time_ms, log_start_offset, is_duplicate = partition.append(
            records, acks, opened=opened, transaction_version=version, written=written
        )
        result.base_offset, result.log_append_time_ms = base_offset, append_time_ms
        result.log_start_offset = log_start_offset
        if not is_duplicate:
            topic = self._services.metrics.topic(partition.topic_partition.topic)
            topic.produced_batches += 1
            topic.produced_records += last_offset - base_offset + 1
            topic.produced_bytes += len(records)
        if acks == ACKS_ALL:
            key = (partition, partition.leader_epoch)
            until, results = self._uncommitted.get(key, (0, []))
            results.append(result)
            self._uncommitted[key] = (max(until, last_offset + 1), results)

    def _not_committed(self, results: list[ProduceResponsePartition], code: ErrorCode) -> None:
        for result in results:
            self._refuse(result, ApiError(code))

    def _refuse(self, result: ProduceResponsePartition, error: ApiError, partition: Partition | None = None) -> None:
        result.error_code = error.code
        result.base_offset = -1
        result.error_message = error.message
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._is_led_by_another = True
        if isinstance(error, RecordError):
            if partition is not None:
                result.log_start_offset = partition.log.log_start_offset
            told = error.bad_records[: self._record_errors_left]
            self._record_errors_left -= len(told)
            result.record_errors = [
                ProduceResponseRecordError(batch_index=index, batch_index_error_message=message)
                for index, message in told
            ]
