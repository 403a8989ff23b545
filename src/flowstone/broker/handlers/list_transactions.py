"""ListTransactions, versions 0 to 2: lists the transactional ids that this broker coordinates.

Filters: state and producer id; since version 1 the time that a transaction has been open; since version 2 a pattern of
the transactional id.
"""

from __future__ import annotations

from flowstone.broker.coordinators.group_answers import outcome_of
from flowstone.broker.loop.time_slices import TimeSlices, batched
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.coordinator.transactions import messages
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransaction,
)

# Different state names and producer ids in a filter; every shard looks at all of them.
STATES_MAX = 100
PRODUCER_IDS_MAX = 10_000


async def handle(services: Services, context: RequestContext, request: ListTransactionsRequest) -> Message:
    states = tuple(dict.fromkeys(request.state_filters))
    producer_ids = tuple(dict.fromkeys(request.producer_id_filters))
    if len(states) > STATES_MAX or len(producer_ids) > PRODUCER_IDS_MAX:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    asked = messages.ListTransactionsRequest(
        states, producer_ids, request.duration_filter, request.transactional_id_pattern
    )
    slices = TimeSlices(services.clock.monotonic)
    calls = services.transactions.request_each(
        lambda shard, now_ms, token: shard.list_transactions(now_ms, token, asked)
    )
    unknown_states: dict[str, None] = {}
    found: list[ListTransactionsResponseTransaction] = []
    for token in [token async for token in slices.over(calls)]:
        outcome = await outcome_of(token)
        code = outcome.code if isinstance(outcome, ApiError) else outcome.error_code
        if code is ErrorCode.NOT_COORDINATOR:
            continue  # another broker lists what this one has lost
        if code:
            return ListTransactionsResponse(error_code=code)
        unknown_states.update(dict.fromkeys(outcome.unknown_states))
        async for some in slices.over(batched(outcome.transactions)):
            found += map(_listed, some)
    response = ListTransactionsResponse(unknown_state_filters=list(unknown_states), transaction_states=found)
    return await encode_if_long(services, context, response, len(found), slices)


def _listed(transaction: messages.ListedTransaction) -> ListTransactionsResponseTransaction:
    return ListTransactionsResponseTransaction(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        transaction_state=transaction.state,
    )
