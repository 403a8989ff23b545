"""AddPartitionsToTxn, versions 0 to 5: partitions become part of a transaction, or are looked for in it.

Versions 0 to 3 are sent by clients: one partition that does not exist keeps the others from being added. Versions 4 and
5 are sent by brokers, for producers that write without having added the partition: many transactions, each to be added
to or only to be verified (KIP-890). Partitions of internal topics are refused, but for those of group offsets, which
only brokers add by this API. Versions before 2 do not know PRODUCER_FENCED.

A client's request that comes while its transaction before is being ended waits for that, for a short time at most
(`waiting_additions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowstone.broker.coordinators.transaction_answers import told
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.cluster.decisions.topic_names import CONSUMER_OFFSETS, is_internal
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.coordinator.transactions.messages import V1, V2, AddPartitionsRequest
from flowstone.errors import ApiError, ErrorCode
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


async def handle(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if context.api_version < _BATCHED_SINCE_VERSION:
        codes = await _add_for_client(services, request)
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=_results(context, request.v3_and_below_topics, codes)
        )
    slices = TimeSlices(services.clock.monotonic)
    results = []
    async for each in slices.over(request.transactions):
        codes = await _add_for_broker(services, each)
        results.append(
            AddPartitionsToTxnResponseTransaction(
                transactional_id=each.transactional_id, topic_results=_results(context, each.topics, codes)
            )
        )
    return AddPartitionsToTxnResponse(results_by_transaction=results)


async def _add_for_client(services: Services, request: AddPartitionsToTxnRequest) -> Mapping[TopicPartition, ErrorCode]:
    partitions = _partitions(request.v3_and_below_topics)
    refused = _refused(services.metadata.image, partitions)
    if refused:
        return {**dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED), **refused}
    add = AddPartitionsRequest(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        frozenset(partitions),
        V1,
    )
    return await _ask(services, add, verify_only=False, may_wait=True)


async def _add_for_broker(
    services: Services, transaction: AddPartitionsToTxnRequestTransaction
) -> Mapping[TopicPartition, ErrorCode]:
    partitions = _partitions(transaction.topics)
    refused = {
        each: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for each in partitions
        if is_internal(each.topic) and each.topic != CONSUMER_OFFSETS
    }
    if refused:
        return {**dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED), **refused}
    add = AddPartitionsRequest(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        frozenset(partitions),
        V2,
    )
    # A broker's requests share a connection, on which nothing may wait for one of many transactions.
    return await _ask(services, add, verify_only=transaction.verify_only, may_wait=False)


async def _ask(
    services: Services, add: AddPartitionsRequest, *, verify_only: bool, may_wait: bool
) -> Mapping[TopicPartition, ErrorCode]:
    try:
        return await services.transactions.add_or_verify_here(add, verify_only=verify_only, may_wait=may_wait)
    except ApiError as error:
        return dict.fromkeys(add.partitions, error.code)


def _partitions(topics: Sequence[AddPartitionsToTxnRequestTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _refused(image: ClusterImage, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """Return the partitions that a client may not add, with the reason."""
    refused = {}
    for each in partitions:
        if is_internal(each.topic):
            refused[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif image.partition(each) is None:
            refused[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return refused


def _results(
    context: RequestContext,
    topics: Sequence[AddPartitionsToTxnRequestTopic],
    codes: Mapping[TopicPartition, ErrorCode],
) -> list[AddPartitionsToTxnResponseTopic]:
    return [
        AddPartitionsToTxnResponseTopic(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnResponsePartition(
                    partition_index=index,
                    partition_error_code=told(
                        context.api_key, context.api_version, codes[TopicPartition(topic.name, index)]
                    ),
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
