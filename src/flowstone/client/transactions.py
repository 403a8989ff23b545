"""Transactions of a client: begun by one process, written in by several, and ended by one.

`begin` makes this process the only producer of a transactional id: a transaction that an earlier one left open is
aborted, and everything that it still sends is refused. The `Identity` that it returns can be sent to other processes,
each of which makes a `Transaction` of it.

The requests are those of the protocol's first version, in which partitions are added before they are written to. Every
broker since Apache Kafka 3.0 has them, and an identity that is used for one transaction only needs no more: late
requests of an earlier transaction carry an old epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flowstone.client.brokers import Brokers
from flowstone.client.coordinators import CoordinatorKind, Coordinators, check
from flowstone.client.errors import LeaderMoved, Refused, Retriable
from flowstone.client.groups import NO_GENERATION, NO_MEMBER, CommittedOffset
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.client.wire_session import Response
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    AddPartitionsToTxnResponse,
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    DescribeProducersResponse,
    DescribeProducersResponseProducer,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

DEADLINE_S = 60.0
# What an abort is refused with if there is nothing to abort any more.
_ENDED = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
NO_TRANSACTION = -1  # the first offset of a producer's open transaction, if it has none in the partition


class Identity(NamedTuple):
    """The producer of one transaction, for any process that takes part in it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def pair(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch


class Written(NamedTuple):
    """The part of a producer's open transaction that a partition's leader has."""

    last_sequence: int
    first_offset: int


def begin(brokers: Brokers, transactional_id: str, timeout_ms: int, deadline_s: float = DEADLINE_S) -> Transaction:
    """Begin a transaction as the id's only producer, after ending the previous one. Raises ClientError.

    The brokers abort it if it is still open after `timeout_ms`.
    """
    coordinators = Coordinators(brokers, CoordinatorKind.TRANSACTION)
    deadline = RetryDeadline(deadline_s)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    while True:
        try:
            answer = coordinators.ask(transactional_id, request, InitProducerIdResponse, deadline)
            check(answer.error_code, f"transactional id {transactional_id}")
        except Retriable as error:
            coordinators.retry_after(transactional_id, error, deadline)
        else:
            identity = Identity(transactional_id, answer.producer_id, answer.producer_epoch)
            return Transaction(brokers, identity, deadline_s)


class Transaction:
    """One transaction, as seen by a process that takes part in it. Every method raises ClientError."""

    def __init__(self, brokers: Brokers, identity: Identity, deadline_s: float = DEADLINE_S) -> None:
        self.identity = identity
        self._brokers, self._deadline_s = brokers, deadline_s
        self._coordinators = Coordinators(brokers, CoordinatorKind.TRANSACTION)
        self._group_coordinators = Coordinators(brokers, CoordinatorKind.GROUP)

    def add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Make partitions part of the transaction, before anything is written to them."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        transactional_id, producer_id, producer_epoch = self.identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequestTopic(name=name, partitions=indexes) for name, indexes in topics.items()
            ],
        )
        self._ask(request, AddPartitionsToTxnResponse, _check_added)

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Make offsets of a group part of the transaction: they are committed with it, or not at all."""
        transactional_id, producer_id, producer_epoch = self.identity
        self._ask(
            AddOffsetsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                group_id=group,
            ),
            AddOffsetsToTxnResponse,
            self._check,
        )
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for partition, committed in offsets.items():
            topics.setdefault(partition.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=committed.offset,
                    committed_metadata=committed.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            generation_id=NO_GENERATION,
            member_id=NO_MEMBER,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        deadline = RetryDeadline(self._deadline_s)
        while True:
            try:
                answer = self._group_coordinators.ask(group, request, TxnOffsetCommitResponse, deadline)
                for topic in answer.topics:
                    for each in topic.partitions:
                        check(each.error_code, f"group {group}, {topic.name}-{each.partition_index}")
                return
            except Retriable as error:
                self._group_coordinators.retry_after(group, error, deadline)

    def written(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Written]:
        """Return what the leaders have of this transaction; a partition without a record of it is absent."""
        found: dict[TopicPartition, Written] = {}
        deadline = RetryDeadline(self._deadline_s)
        missing = set(partitions)
        while missing:
            try:
                for address, led in self._brokers.by_leader(sorted(missing), deadline.left_s).items():
                    request = _describe_producers([partition for partition, _leader in led])
                    answer = self._brokers.ask(address, request, DescribeProducersResponse, deadline.left_s)
                    self._note_written(answer, found, missing)
            except Retriable as error:
                if isinstance(error, LeaderMoved):
                    for each in missing:
                        self._brokers.forget(each)
                deadline.wait(error)
        return found

    def commit(self) -> None:
        """Make everything that was written visible.

        After GaveUp it is not known whether the transaction is committed.
        """
        self._end(is_commit=True)

    def abort(self) -> None:
        """Drop everything that was written. Does nothing if the transaction has ended before."""
        try:
            self._end(is_commit=False)
        except Refused as error:
            if error.code not in _ENDED:
                raise

    def _end(self, *, is_commit: bool) -> None:
        transactional_id, producer_id, producer_epoch = self.identity
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            committed=is_commit,
        )
        self._ask(request, EndTxnResponse, self._check)

    def _ask(self, request: Message, kind: type[Response], checked: Callable[[Response], None]) -> None:
        """Send a request to the transaction coordinator until it succeeds."""
        transactional_id = self.identity.transactional_id
        deadline = RetryDeadline(self._deadline_s)
        while True:
            try:
                checked(self._coordinators.ask(transactional_id, request, kind, deadline))
                return
            except Retriable as error:
                self._coordinators.retry_after(transactional_id, error, deadline)

    def _check(self, answer: AddOffsetsToTxnResponse | EndTxnResponse) -> None:
        check(answer.error_code, f"transactional id {self.identity.transactional_id}")

    def _note_written(
        self, answer: DescribeProducersResponse, found: dict[TopicPartition, Written], missing: set[TopicPartition]
    ) -> None:
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                check(each.error_code, partition, each.error_message)
                missing.discard(partition)
                for producer in each.active_producers:
                    if self._is_open(producer):
                        found[partition] = Written(producer.last_sequence, producer.current_txn_start_offset)

    def _is_open(self, producer: DescribeProducersResponseProducer) -> bool:
        pair = producer.producer_id, producer.producer_epoch
        return pair == self.identity.pair and producer.current_txn_start_offset != NO_TRANSACTION


def _check_added(answer: AddPartitionsToTxnResponse) -> None:
    failed = None
    for topic in answer.results_by_topic_v3_and_below:
        for each in topic.results_by_partition:
            code = each.partition_error_code
            if code and (failed is None or failed[0] == ErrorCode.OPERATION_NOT_ATTEMPTED):
                failed = code, f"{topic.name}-{each.partition_index}"
    if failed is not None:
        check(*failed)


def _describe_producers(partitions: Sequence[TopicPartition]) -> DescribeProducersRequest:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return DescribeProducersRequest(
        topics=[DescribeProducersRequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    )
