"""Verifies with the transaction coordinator that a partition is part of a producer's transaction.

A transactional batch must not open a transaction in a partition that the coordinator does not know to be part of it,
because no marker would ever end it there (KIP-890). The first batch of a transaction in a partition therefore waits for
the coordinator's answer; the following ones do not. A client of protocol V1 has added the partition itself, and the
coordinator verifies that; for a client of V2 the coordinator adds it now. The version of the Produce request determines
the protocol.

If the coordinator is on the same broker and all that it has seen is committed, its state is read at once, and the batch
does not wait.

Order: all batches of a producer whose transactions are being verified wait in one queue, in the order of their arrival
over all connections. Other producers do not wait. The queue holds copies of the requests' records. Their bytes are
limited (`HELD_BYTES_MAX`), and a producer that holds much is refused before one that holds little.

An answer is used only while it is valid. The transaction's end marker may be in the log before the answer arrives: a
guard that is made before the question records whether one has come, and the leader epoch must be the same. The
coordinator's refusals are converted to error codes that the request's version knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from struct import Struct
from typing import NamedTuple, Protocol

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producer_state import TRANSACTIONS_V2, UNVERIFIED
from flowstone.memory_budget import MemoryAccount, MemoryBudget
from flowstone.ports.clock import Clock, done_within
from flowstone.replication.partition import Partition
from flowstone.types import Bytes, TopicPartition
from flowstone.wire.record_batch import HEADER_BYTES, TRANSACTIONAL_FLAG, BatchHeader, CorruptBatch, parse_header

# Bytes of requests that wait for the coordinator, over all producers. One request may be larger, if no other waits.
HELD_BYTES_MAX = 64 << 20
# How long the coordinator may take to answer; the producer is told to try again after that.
ANSWER_S_MAX = 5.0
# While the transaction before is being ended, clients of the second protocol need not ask again for this long.
CONCURRENT_RETRY_S, CONCURRENT_RETRIES_S_MAX = 0.02, 0.1

TRANSACTIONS_V1 = 1
FIRST_VERSION_WITH_TRANSACTION_ABORTABLE = 11
FIRST_VERSION_WITH_IMPLICIT_ADDING = 12
_ATTRIBUTES_POSITION = 22  # of the low byte of a batch's attributes
_PRODUCER, _PRODUCER_POSITION = Struct(">qh"), 43  # a batch's producer id and epoch

# What is told as the coordinator says it. Anything else says that the coordinator could not be asked.
_TOLD_AS_IT_IS = frozenset(
    {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class AddsPartitions(Protocol):
    """The part of the transaction coordinator that adds and verifies partitions."""

    def is_verified(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: TopicPartition
    ) -> bool:
        """Return whether the partition is known at once to be part of the producer's transaction."""

    def add_or_verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Awaitable[Mapping[TopicPartition, ErrorCode]]:
        """Add the partitions to the producer's transaction, or verify that they are in it; return a code for each.

        Raises ApiError if the coordinator cannot be asked.
        """


def is_transactional(records: Bytes) -> bool:
    """Return whether the batch's header marks it as transactional; the bytes need not be a valid batch."""
    return len(records) > _ATTRIBUTES_POSITION and bool(records[_ATTRIBUTES_POSITION] & TRANSACTIONAL_FLAG)


def produce_error(code: ErrorCode, api_version: int) -> ErrorCode:
    """Return the error code in a Produce response of this version for the coordinator's `code`.

    A client of protocol V1 retries after NOT_ENOUGH_REPLICAS, without requesting metadata first.
    """
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and api_version < FIRST_VERSION_WITH_TRANSACTION_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and api_version >= FIRST_VERSION_WITH_IMPLICIT_ADDING:
        return code
    return code if code in _TOLD_AS_IT_IS else ErrorCode.NOT_ENOUGH_REPLICAS


class _Turn:
    """The queue of one producer."""

    __slots__ = ("lock", "request_count")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.request_count = 0  # that wait or have the lock


class TransactionVerification:
    """The queues of all producers of one broker, and a limit on the memory of what waits in them."""

    def __init__(self, clock: Clock, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.clock = clock
        self._budget = MemoryBudget(held_bytes_max)
        self._held = MemoryAccount(self._budget)
        self._turns: dict[int, _Turn] = {}

    @property
    def held_bytes(self) -> int:
        return self._budget.used_bytes

    def is_busy(self, producer_id: int) -> bool:
        """Return whether batches of the producer are being verified or wait for that."""
        return producer_id in self._turns

    def hold(self, producer_id: int, size_bytes: int) -> None:
        """Reserve memory for a waiting request. Raises ApiError if the producer, or all together, hold too much."""
        if self._budget.used_bytes and not self._held.may_grow(producer_id, size_bytes):
            told = "too many transactional batches wait for their transaction coordinators; try again"
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, told)
        self._held.set_size(producer_id, self._held.size_of(producer_id) + size_bytes)

    def release(self, producer_id: int, size_bytes: int) -> None:
        """Release memory that `hold` has reserved."""
        self._held.set_size(producer_id, self._held.size_of(producer_id) - size_bytes)

    @asynccontextmanager
    async def turn(self, producer_id: int) -> AsyncIterator[None]:
        """Wait until every earlier request of the producer is finished."""
        turn = self._turns.setdefault(producer_id, _Turn())
        turn.request_count += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.request_count -= 1
            if not turn.request_count:
                del self._turns[producer_id]


class MarkerGuard:
    """A watch on a partition for an end marker that forbids a batch, while the coordinator is asked.

    Under V2 a marker with the batch's own epoch ends the previous transaction, because each end raises the epoch; such
    a marker forbids nothing. A producer has at most one guard per partition at a time.
    """

    __slots__ = ("_epoch", "_is_second_protocol", "_partition", "_producer_id", "is_stale")

    def __init__(self, partition: Partition, producer_id: int, epoch: int, *, is_second_protocol: bool) -> None:
        self._partition, self._producer_id, self._epoch = partition, producer_id, epoch
        self._is_second_protocol = is_second_protocol
        self.is_stale = False
        partition.log.producers.on_marker[producer_id] = self._marker_applied

    def _marker_applied(self, marker_epoch: int) -> None:
        self.is_stale |= not self._is_second_protocol or marker_epoch > self._epoch

    def end(self) -> None:
        """Stop watching for markers."""
        self.is_stale = True
        self._partition.log.producers.on_marker.pop(self._producer_id, None)


class _Asked(NamedTuple):
    """A partition that the coordinator was asked about, and its answer."""

    guard: MarkerGuard
    error: ApiError | None


class ProducedTransaction:
    """The transaction that the batches of one Produce request belong to."""

    def __init__(
        self, verification: TransactionVerification, coordinator: AddsPartitions, transactional_id: str, version: int
    ) -> None:
        """Create it without batches; `version` is the version of the Produce request."""
        self._verification, self._coordinator = verification, coordinator
        self._transactional_id, self._version = transactional_id, version
        self._is_implicit = version >= FIRST_VERSION_WITH_IMPLICIT_ADDING
        self._transaction_version = TRANSACTIONS_V2 if self._is_implicit else TRANSACTIONS_V1
        self._producer: tuple[int, int] | None = None  # id and epoch
        self._has_turn = False
        # The leader epoch of each partition that was led here when the coordinator was asked.
        self._led: dict[Partition, int] = {}
        self._asked: dict[Partition, _Asked] = {}
        self._verified: Partition | None = None  # for the append that follows in the same iteration of the loop

    @property
    def producer_id(self) -> int | None:
        """Return the producer of the transactional batches, or None before the first one."""
        return self._producer[0] if self._producer is not None else None

    def note(self, records: Bytes) -> None:
        """Record the producer of a transactional batch. Raises ApiError if the request's batches have several
        producers.
        """
        if not is_transactional(records) or len(records) < HEADER_BYTES:
            return
        producer = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
        if self._producer is None:
            self._producer = producer
        elif producer != self._producer:
            told = "the request has transactional batches of more than one producer"
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, told)

    def is_due(self, partition: Partition, records: Bytes) -> bool:
        """Return whether the batch must wait: for the coordinator, or for earlier batches of its producer.

        If not, it must be appended at once, before anything else runs. Raises ApiError if the bytes are not a batch.
        """
        if self._has_turn or not is_transactional(records):
            return False
        header = parse_header(records)
        if self._verification.is_busy(header.producer_id):
            return True
        if _needs_no_coordinator(partition, header):
            return False
        is_verified = not self._is_implicit and self._coordinator.is_verified(
            self._transactional_id, header.producer_id, header.producer_epoch, partition.topic_partition
        )
        self._verified = partition if is_verified else None
        return not is_verified

    def version_for(self, partition: Partition, records: Bytes) -> int:
        """Return the transaction version with which to append the batch now. Raises ApiError if it must not be
        appended.
        """
        if not is_transactional(records):
            return UNVERIFIED
        verified, self._verified = self._verified, None
        if verified is partition:
            return self._transaction_version
        if _needs_no_coordinator(partition, parse_header(records)):
            return self._transaction_version
        if self._led.get(partition) != partition.leader_epoch:
            told = f"broker {partition.leader_id} leads {partition.topic_partition}"
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, told)
        asked = self._asked.get(partition)
        if asked is not None and asked.error is not None:
            raise asked.error
        if asked is None or asked.guard.is_stale:
            told = f"the transaction of {self._transactional_id!r} was ended while its batch was on its way"
            raise ApiError(ErrorCode.INVALID_TXN_STATE, told)
        return self._transaction_version

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until all earlier requests of the producer are finished; forget the coordinator's answers at the end."""
        if self._producer is None:
            yield
            return
        producer_id = self._producer[0]
        async with self._verification.turn(producer_id):
            self._has_turn = True
            try:
                yield
            finally:
                for asked in self._asked.values():
                    asked.guard.end()
                self._asked = {}

    async def verify(self, batches: AsyncIterator[tuple[Partition, Bytes]]) -> None:
        """Ask the coordinator about the partitions of those batches that need it; `version_for` uses the answers.

        `batches` are those whose partitions this broker leads. `version_for` refuses all others.
        """
        guards: dict[Partition, MarkerGuard] = {}
        async for partition, records in batches:
            self._led[partition] = partition.leader_epoch
            if partition in guards or not is_transactional(records) or len(records) < HEADER_BYTES:
                continue
            try:
                header = parse_header(records)
            except CorruptBatch:  # which the log refuses
                continue
            if not _needs_no_coordinator(partition, header):
                guard = MarkerGuard(
                    partition, header.producer_id, header.producer_epoch, is_second_protocol=self._is_implicit
                )
                guards[partition] = guard
                self._asked[partition] = _Asked(guard, None)
        if guards:
            codes = await self._ask([partition.topic_partition for partition in guards])
            for partition in guards:
                code = codes.get(partition.topic_partition, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                if code is not ErrorCode.NONE:
                    self._asked[partition] = self._asked[partition]._replace(error=self._refusal(code))

    def _refusal(self, code: ErrorCode) -> ApiError:
        told = f"the transaction coordinator of {self._transactional_id!r} says {ErrorCode(code).name}"
        return ApiError(produce_error(code, self._version), told)

    async def _ask(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
        """Ask the coordinator; repeat while the previous transaction is being ended, if the client would repeat at
        once.
        """
        clock = self._verification.clock
        ends_s = clock.monotonic() + CONCURRENT_RETRIES_S_MAX
        while True:
            codes = await self._ask_once(partitions)
            is_concurrent = self._is_implicit and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            if not is_concurrent or clock.monotonic() + CONCURRENT_RETRY_S > ends_s:
                return codes
            await clock.sleep(CONCURRENT_RETRY_S)

    async def _ask_once(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
        assert self._producer is not None
        asking = asyncio.ensure_future(
            self._coordinator.add_or_verify(
                self._transactional_id, *self._producer, partitions, verify_only=not self._is_implicit
            )
        )
        try:
            if await done_within(self._verification.clock, asking, ANSWER_S_MAX):
                return asking.result()
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        except ApiError as error:
            return dict.fromkeys(partitions, error.code)
        finally:
            asking.cancel()


def _needs_no_coordinator(partition: Partition, header: BatchHeader) -> bool:
    """Return whether the batch continues an open transaction, or will be refused for its outdated epoch."""
    producers = partition.log.producers
    if producers.has_open_transaction(header.producer_id, header.producer_epoch):
        return True
    producer = producers.get(header.producer_id)
    return producer is not None and header.producer_epoch < producer.epoch
