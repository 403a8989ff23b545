"""Search for the transactional id of a producer id: in the shards of this broker, then at the other coordinators.

Every coordinator knows its own transactional ids only. The search is for people; no request of a producer needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.client.errors import ClientError
from flowstone.coordinator.transactions import messages
from flowstone.coordinator.transactions.records import TransactionState
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from flowstone.coordinator.runtime import Token

SEARCH_TIMEOUT_S = 2.0  # for the answer of each other broker
_OPEN_STATES = frozenset(
    each.label for each in TransactionState if each.is_prepared or each is TransactionState.ONGOING
)


class FoundTransaction(NamedTuple):
    transactional_id: str
    state: str

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN_STATES


def listing_of(producer_id: int) -> messages.ListTransactionsRequest:
    return messages.ListTransactionsRequest((), (producer_id,), -1, None)


async def search(
    tokens: Sequence[Token], peers: BrokerPeers, others: Sequence[int], producer_id: int
) -> FoundTransaction | None:
    """Return the transactional id that has the producer id, or None if no coordinator knows one.

    `tokens` are the promises of this broker's shards for `listing_of`. Raises ApiError if one could not be asked, and
    none of the others knows it.
    """
    missing = False
    for token in tokens:
        try:
            listed = (await token).transactions
        except ApiError:  # the shard is loading, or has moved
            missing = True
            continue
        for each in listed:
            return FoundTransaction(each.transactional_id, each.state)
    request = ListTransactionsRequest(producer_id_filters=[producer_id])
    for node_id in others:
        try:
            answer = await peers.ask(node_id, request, ListTransactionsResponse, SEARCH_TIMEOUT_S)
        except ClientError:
            missing = True
            continue
        missing |= answer.error_code != ErrorCode.NONE
        for told in answer.transaction_states:
            return FoundTransaction(told.transactional_id, told.transaction_state)
    if missing:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return None
