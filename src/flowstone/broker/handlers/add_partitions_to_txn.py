"""AddPartitionsToTxn, versions 0 to 5: adds partitions to a transaction, or verifies that they are in it.

Versions 0 to 3 are sent by clients: one partition that does not exist keeps the others from being added. Versions 4 and
5 are sent by brokers, for producers that write without having added the partition: many transactions, each to be added
to or only to be verified (KIP-890). Partitions of internal topics are refused, but for those of group offsets, which
only brokers add by this API. Versions before 2 do not know PRODUCER_FENCED.

A request may name partitions by the hundred thousand: they are gone through in time slices, and a transaction is asked
about at most as many as it may have. A client's request of a few partitions, as most are, is handled without a
coroutine: one takes several iterations of the loop, which are long when many producers are busy.

A client's request that comes while its transaction before is being ended waits for that, for a short time at most
(`waiting_additions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowstone.broker.coordinators.group_answers import Answer
from flowstone.broker.coordinators.transaction_answers import told
from flowstone.broker.loop.time_slices import BATCH_ITEMS, TimeSlices, batched, run_in_slices, run_whole
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.cluster.decisions.topic_names import CONSUMER_OFFSETS, is_internal
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.coordinator.transactions.config import PARTITIONS_PER_TRANSACTION_MAX
from flowstone.coordinator.transactions.messages import V1, V2, AddPartitionsRequest
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    AddPartitionsToTxnRequestTransaction,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponsePartition,
    AddPartitionsToTxnResponseTopic,
    AddPartitionsToTxnResponseTransaction,
)

_BATCHED_SINCE_VERSION = 4


@dataclass(frozen=True)
class _Codes:
    """The error codes of one transaction's partitions: `default`, but for those in `others`."""

    default: ErrorCode
    others: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)

    def __getitem__(self, partition: TopicPartition) -> ErrorCode:
        return self.others.get(partition, self.default)


_Topics = Sequence[AddPartitionsToTxnRequestTopic]


Answered = AddPartitionsToTxnResponse | Promise[AddPartitionsToTxnResponse]


def handle(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Answered | Coroutine[Any, Any, AddPartitionsToTxnResponse]:
    topics = request.v3_and_below_topics
    is_clients = context.api_version < _BATCHED_SINCE_VERSION
    if is_clients and len(topics) + sum(len(topic.partitions) for topic in topics) <= BATCH_ITEMS:
        return _add_at_once(services, context, request)
    return _add_in_slices(services, context, request)


def _add_at_once(services: Services, context: RequestContext, request: AddPartitionsToTxnRequest) -> Answered:
    """Handle a client's request that names few partitions."""
    topics = request.v3_and_below_topics

    def respond(codes: _Codes) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=run_whole(_results(context, topics, codes)))

    refused = run_whole(_refused(services.metadata.image, topics))
    if refused:
        return respond(_Codes(ErrorCode.OPERATION_NOT_ATTEMPTED, refused))
    answer = _Added(lambda added: respond(_Codes(added.error_code)), lambda code: respond(_Codes(code)))
    add = _addition(request, run_whole(_distinct(topics)))
    # After the other requests that have arrived: records that are appended together share their flushes.
    asyncio.get_running_loop().call_soon(_ask_for, answer, services, add)
    return answer


class _Added(Answer[AddPartitionsToTxnResponse]):
    """The answer to a request that is carried out later, and before the connection's next one."""

    __slots__ = ()
    is_work = True


def _ask_for(answer: Answer[AddPartitionsToTxnResponse], services: Services, add: AddPartitionsRequest) -> None:
    if not answer.is_done:  # the connection is still there
        services.transactions.add_partitions(add).add_done_callback(answer.hear)


async def _add_in_slices(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    slices = TimeSlices(services.clock.monotonic)
    if context.api_version < _BATCHED_SINCE_VERSION:
        topics = request.v3_and_below_topics
        codes = await _add_for_client(services, request, slices)
        results = await run_in_slices(_results(context, topics, codes), slices)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    transactions = []
    async for each in slices.over(request.transactions):
        codes = await _add_for_broker(services, each, slices)
        results = await run_in_slices(_results(context, each.topics, codes), slices)
        transactions.append(
            AddPartitionsToTxnResponseTransaction(transactional_id=each.transactional_id, topic_results=results)
        )
    return AddPartitionsToTxnResponse(results_by_transaction=transactions)


async def _add_for_client(services: Services, request: AddPartitionsToTxnRequest, slices: TimeSlices) -> _Codes:
    topics = request.v3_and_below_topics
    refused = await run_in_slices(_refused(services.metadata.image, topics), slices)
    if refused:
        return _Codes(ErrorCode.OPERATION_NOT_ATTEMPTED, refused)
    add = _addition(request, await run_in_slices(_distinct(topics), slices))
    return await _ask(services, add, verify_only=False, may_wait=True)


def _addition(request: AddPartitionsToTxnRequest, partitions: frozenset[TopicPartition]) -> AddPartitionsRequest:
    return AddPartitionsRequest(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        partitions,
        V1,
    )


async def _add_for_broker(
    services: Services, transaction: AddPartitionsToTxnRequestTransaction, slices: TimeSlices
) -> _Codes:
    partitions = await run_in_slices(_distinct(transaction.topics), slices)
    refused = {
        each: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for each in partitions
        if is_internal(each.topic) and each.topic != CONSUMER_OFFSETS
    }
    if refused:
        return _Codes(ErrorCode.OPERATION_NOT_ATTEMPTED, refused)
    add = AddPartitionsRequest(
        transaction.transactional_id, transaction.producer_id, transaction.producer_epoch, partitions, V2
    )
    # A broker's requests share a connection, on which nothing may wait for one of many transactions.
    return await _ask(services, add, verify_only=transaction.verify_only, may_wait=False)


async def _ask(services: Services, add: AddPartitionsRequest, *, verify_only: bool, may_wait: bool) -> _Codes:
    if len(add.partitions) > PARTITIONS_PER_TRANSACTION_MAX:
        return _Codes(ErrorCode.POLICY_VIOLATION)
    try:
        codes = await services.transactions.add_or_verify_here(add, verify_only=verify_only, may_wait=may_wait)
    except ApiError as error:
        return _Codes(error.code)
    return _Codes(ErrorCode.UNKNOWN_SERVER_ERROR, codes)


def _distinct(topics: _Topics) -> Generator[None, None, frozenset[TopicPartition]]:
    """Return the partitions that the topics name: not all of them if they are more than a transaction may have."""
    partitions: set[TopicPartition] = set()
    for topic in topics:
        for indexes in batched(topic.partitions):
            partitions.update(TopicPartition(topic.name, index) for index in indexes)
            if len(partitions) > PARTITIONS_PER_TRANSACTION_MAX:
                return frozenset(partitions)
            yield
    return frozenset(partitions)


def _refused(image: ClusterImage, topics: _Topics) -> Generator[None, None, dict[TopicPartition, ErrorCode]]:
    """Return the partitions that a client may not add, each with its error code."""
    refused = {}
    for topic in topics:
        internal = is_internal(topic.name)
        for indexes in batched(topic.partitions):
            for index in indexes:
                where = TopicPartition(topic.name, index)
                if internal:
                    refused[where] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif image.partition(where) is None:
                    refused[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            yield
    return refused


def _results(
    context: RequestContext, topics: _Topics, codes: _Codes
) -> Generator[None, None, list[AddPartitionsToTxnResponseTopic]]:
    api_key, api_version = context.api_key, context.api_version
    results = []
    for topic in topics:
        partitions: list[AddPartitionsToTxnResponsePartition] = []
        for indexes in batched(topic.partitions):
            partitions.extend(
                AddPartitionsToTxnResponsePartition(
                    partition_index=index,
                    partition_error_code=told(api_key, api_version, codes[TopicPartition(topic.name, index)]),
                )
                for index in indexes
            )
            yield
        results.append(AddPartitionsToTxnResponseTopic(name=topic.name, results_by_partition=partitions))
    return results
