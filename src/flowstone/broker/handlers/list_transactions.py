"""ListTransactions, versions 0 to 2: lists the transactional ids that this broker coordinates.

Filters: state and producer id; since version 1 the time that a transaction has been open; since version 2 a pattern of
the transactional id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowstone.broker.coordinators.group_answers import answer_all
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.transactions import messages
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransaction,
)

# Different state names and producer ids in a filter; every shard looks at all of them.
STATES_MAX = 100
PRODUCER_IDS_MAX = 10_000


def handle(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse | Promise[ListTransactionsResponse]:
    states = tuple(dict.fromkeys(request.state_filters))
    producer_ids = tuple(dict.fromkeys(request.producer_id_filters))
    if len(states) > STATES_MAX or len(producer_ids) > PRODUCER_IDS_MAX:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    asked = messages.ListTransactionsRequest(
        states, producer_ids, request.duration_filter, request.transactional_id_pattern
    )
    tokens = services.transactions.request_all(
        lambda shard, now_ms, token: shard.list_transactions(now_ms, token, asked)
    )
    return answer_all(tokens, _respond)


def _respond(outcomes: Sequence[Any]) -> ListTransactionsResponse:
    unknown_states: dict[str, None] = {}
    found: list[ListTransactionsResponseTransaction] = []
    for outcome in outcomes:
        code = outcome.code if isinstance(outcome, ApiError) else outcome.error_code
        if code is ErrorCode.NOT_COORDINATOR:
            continue  # another broker lists what this one has lost
        if code:
            return ListTransactionsResponse(error_code=code)
        unknown_states.update(dict.fromkeys(outcome.unknown_states))
        found += (
            ListTransactionsResponseTransaction(
                transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state
            )
            for each in outcome.transactions
        )
    return ListTransactionsResponse(unknown_state_filters=list(unknown_states), transaction_states=found)
