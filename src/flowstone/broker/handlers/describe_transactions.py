"""DescribeTransactions, version 0: shows the state, producer and partitions of transactional ids coordinated here."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

from flowstone.broker.coordinators.group_answers import outcome_of
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.effects import Effects
from flowstone.coordinator.runtime import Token
from flowstone.coordinator.transactions.messages import DescribedTransaction
from flowstone.coordinator.transactions.shard import TransactionShard
from flowstone.errors import ApiError
from flowstone.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopic,
    DescribeTransactionsResponseTransaction,
)


async def handle(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    slices = TimeSlices(services.clock.monotonic)
    described = []
    async for transactional_id in slices.over(dict.fromkeys(request.transactional_ids)):
        token = services.transactions.request(transactional_id, partial(_describe, transactional_id))
        described.append(_respond(transactional_id, await outcome_of(token)))
    return DescribeTransactionsResponse(transaction_states=described)


def _describe(transactional_id: str, shard: TransactionShard, now_ms: int, token: Token) -> Effects[Any]:
    return shard.describe_transaction(now_ms, token, transactional_id)


def _respond(transactional_id: str, outcome: Any) -> DescribeTransactionsResponseTransaction:
    if isinstance(outcome, ApiError):
        return DescribeTransactionsResponseTransaction(transactional_id=transactional_id, error_code=outcome.code)
    assert isinstance(outcome, DescribedTransaction)
    indexes: defaultdict[str, list[int]] = defaultdict(list)
    for each in outcome.partitions:
        indexes[each.topic].append(each.partition)
    return DescribeTransactionsResponseTransaction(
        transactional_id=transactional_id,
        error_code=outcome.error_code,
        transaction_state=outcome.state,
        transaction_timeout_ms=outcome.timeout_ms,
        transaction_start_time_ms=outcome.start_ms,
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
        topics=[
            DescribeTransactionsResponseTopic(topic=name, partitions=partitions) for name, partitions in indexes.items()
        ],
    )
