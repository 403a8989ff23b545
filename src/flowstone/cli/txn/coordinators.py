"""Requests to transaction coordinators: their transactional ids, and the state of each.

Every coordinator lists its own transactional ids, so all brokers are asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from flowstone.cli.common.errors import CommandError
from flowstone.cli.txn.broker_link import BrokerLink, chunks
from flowstone.cli.txn.facts import NO_TIME, DescribedTransaction, ListedTransaction
from flowstone.client import Refused
from flowstone.client.errors import refusal
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransaction,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

ID_BYTES_MAX = 2**15 - 1  # of a transactional id, and of a filter of ids
# Elements of one request; a broker refuses more than 10,000 producer ids.
IDS_AT_ONCE = 500
PRODUCER_IDS_AT_ONCE = 1000
_TRANSACTION_KEY = 1


class Coordinators:
    def __init__(self, link: BrokerLink) -> None:
        self._link = link

    def list_all(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        duration_ms: int = -1,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Return the transactional ids that pass all filters, by name, from all coordinators."""
        for option, text in (*(("--state", each) for each in states), ("--pattern", pattern or "")):
            if len(text.encode()) > ID_BYTES_MAX:
                raise CommandError(f"{option} {text}: at most {ID_BYTES_MAX} bytes can be sent")
        request = ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=producer_ids,
            duration_filter=duration_ms,
            transactional_id_pattern=pattern,
        )
        self._link.retry(lambda left_s: self._link.brokers.describe([], left_s))
        found: dict[str, ListedTransaction] = {}
        for node_id in self._link.brokers.node_ids:
            for each in self._list_of(node_id, request, pattern):
                found[each.transactional_id] = each
        return [found[name] for name in sorted(found)]

    def _list_of(
        self, node_id: int, request: ListTransactionsRequest, pattern: str | None
    ) -> Iterator[ListedTransaction]:
        def ask(left_s: float) -> ListTransactionsResponse:
            answer = self._link.brokers.ask_node(node_id, request, ListTransactionsResponse, left_s)
            if answer.error_code:
                raise refusal(answer.error_code, f"broker {node_id}")
            return answer

        try:
            answer = self._link.retry(ask)
        except Refused as error:
            if error.code is ErrorCode.INVALID_REGULAR_EXPRESSION:
                raise CommandError(f"--pattern {pattern}: that is not a regular expression of RE2") from None
            raise
        if answer.unknown_state_filters:
            raise CommandError(f"--state {answer.unknown_state_filters[0]}: the broker knows no such state")
        for each in answer.transaction_states:
            yield ListedTransaction(each.transactional_id, node_id, each.producer_id, each.transaction_state)

    def describe(self, transactional_id: str) -> DescribedTransaction | None:
        """Return a transactional id's state, or None if its coordinator does not know it."""
        if not 0 < len(transactional_id.encode()) <= ID_BYTES_MAX:
            return None
        return self._link.retry(lambda left_s: self._describe_one(transactional_id, left_s))

    def _describe_one(self, transactional_id: str, left_s: float) -> DescribedTransaction | None:
        request = FindCoordinatorRequest(key_type=_TRANSACTION_KEY, coordinator_keys=[transactional_id])
        found = self._link.brokers.ask_any(request, FindCoordinatorResponse, left_s).coordinators[0]
        if found.error_code:
            raise refusal(found.error_code, f"the coordinator of {transactional_id}", found.error_message)
        self._link.brokers.describe([], left_s)
        described = self._ask_coordinator(found.node_id, [transactional_id], left_s)
        return described.get(transactional_id)

    def describe_all(self, listed: Iterable[ListedTransaction]) -> dict[str, DescribedTransaction]:
        """Return the states of listed transactional ids, without those that expired or moved meanwhile."""
        by_coordinator: dict[int, list[str]] = {}
        for each in listed:
            by_coordinator.setdefault(each.coordinator, []).append(each.transactional_id)
        found: dict[str, DescribedTransaction] = {}
        for node_id, names in by_coordinator.items():
            for some in chunks(names, IDS_AT_ONCE):
                found |= self._link.retry(partial(self._ask_coordinator, node_id, some, skip_moved=True))
        return found

    def _ask_coordinator(
        self, node_id: int, names: Sequence[str], left_s: float, *, skip_moved: bool = False
    ) -> dict[str, DescribedTransaction]:
        request = DescribeTransactionsRequest(transactional_ids=names)
        answer = self._link.brokers.ask_node(node_id, request, DescribeTransactionsResponse, left_s)
        found = {}
        for each in answer.transaction_states:
            if each.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            if each.error_code == ErrorCode.NOT_COORDINATOR and skip_moved:
                continue
            if each.error_code:
                raise refusal(each.error_code, f"transactional id {each.transactional_id}")
            found[each.transactional_id] = _described(each, node_id)
        return found

    def transactional_ids(self, producer_ids: Iterable[int]) -> dict[int, ListedTransaction]:
        """Return the transactional ids that these producers have, without producers that have none."""
        found = {}
        for some in chunks(sorted(set(producer_ids)), PRODUCER_IDS_AT_ONCE):
            found.update({each.producer_id: each for each in self.list_all(producer_ids=some)})
        return found


def _described(answer: DescribeTransactionsResponseTransaction, node_id: int) -> DescribedTransaction:
    return DescribedTransaction(
        answer.transactional_id,
        node_id,
        answer.producer_id,
        answer.producer_epoch,
        answer.transaction_state,
        answer.transaction_timeout_ms,
        answer.transaction_start_time_ms if answer.transaction_start_time_ms != NO_TIME else None,
        tuple(sorted(TopicPartition(each.topic, index) for each in answer.topics for index in each.partitions)),
    )
