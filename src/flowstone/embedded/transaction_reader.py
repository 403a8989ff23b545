"""Reader of transactional ids from the coordinator of a broker in this process, with waiting but without polling.

Every change of a transactional id is stored, so waiting means watching the end of its partition of
`__transaction_state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from flowstone.broker.coordinators.group_answers import outcome_of
from flowstone.broker.requests.context import Services
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.coordinator.effects import Effects
from flowstone.coordinator.runtime import Token
from flowstone.coordinator.transactions.messages import (
    DescribedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from flowstone.coordinator.transactions.records import NO_TIMESTAMP, TransactionState
from flowstone.coordinator.transactions.shard import TransactionShard
from flowstone.embedded.change_signal import ChangeSignal
from flowstone.errors import ErrorCode
from flowstone.replication.readers import Reader
from flowstone.types import TopicPartition

LOAD_WAIT_S = 10.0
STATES = tuple(each.label for each in TransactionState)


class TransactionStatus(NamedTuple):
    """A transactional id and the state of its current or last transaction."""

    transactional_id: str
    state: str  # Kafka's name: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_timestamp_ms: int | None  # None: there was no transaction yet, or the last one is complete
    partitions: tuple[TopicPartition, ...]  # in the transaction, and without its end marker

    @property
    def is_open(self) -> bool:
        """Return whether records have been written that are neither committed nor aborted."""
        return self.state == TransactionState.ONGOING.label


def check_state(state: str) -> None:
    """Raise ValueError if no transaction is ever in this state."""
    if state not in STATES:
        raise ValueError(f"the states of transactions are {', '.join(STATES)}, not {state!r}")


class TransactionReader:
    """Reader of transactional ids; lives on the broker's event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: set[ChangeSignal] = set()
        services.metadata.on_change(self._changed)

    async def read(self) -> dict[str, TransactionStatus]:
        coordinator = self._services.transactions
        await coordinator.wait_loaded(LOAD_WAIT_S)
        found = {}
        for token in coordinator.request_all(_list):
            outcome = await outcome_of(token)
            if isinstance(outcome, ListTransactionsResponse):  # another broker has the other shards
                for each in outcome.transactions:
                    status = await self.find(each.transactional_id)
                    if status is not None:
                        found[each.transactional_id] = status
        return found

    async def find(self, transactional_id: str) -> TransactionStatus | None:
        """Return the transactional id's state, or None if this broker does not know it."""
        outcome = await outcome_of(
            self._services.transactions.request(transactional_id, partial(_describe, transactional_id))
        )
        if not isinstance(outcome, DescribedTransaction) or outcome.error_code != ErrorCode.NONE:
            return None
        return TransactionStatus(
            transactional_id=transactional_id,
            state=outcome.state,
            producer_id=outcome.producer_id,
            producer_epoch=outcome.producer_epoch,
            timeout_ms=outcome.timeout_ms,
            start_timestamp_ms=outcome.start_ms if outcome.start_ms != NO_TIMESTAMP else None,
            partitions=outcome.partitions,
        )

    async def wait_state(self, transactional_id: str, state: str) -> TransactionStatus:
        """Wait until the transactional id has the state; states that last for a moment may be missed."""
        signal = ChangeSignal()
        self._waiting.add(signal)
        watched = None
        await self._services.transactions.wait_loaded(LOAD_WAIT_S)
        try:
            while True:
                where = self._services.transactions.partition_of(transactional_id)
                partition = self._services.partitions.find(where) if where is not None else None
                if partition is not None:
                    watched = partition
                    watched.local.watchers(Reader.UNCOMMITTED).watch(signal)
                status = await self.find(transactional_id)
                if status is not None and status.state == state:
                    return status
                await signal.changed()
        finally:
            self._waiting.discard(signal)
            if watched is not None:
                watched.local.watchers(Reader.UNCOMMITTED).unwatch(signal)

    def _changed(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        for signal in self._waiting:
            signal.interrupted()


def _list(shard: TransactionShard, now_ms: int, token: Token) -> Effects[Any]:
    return shard.list_transactions(now_ms, token, ListTransactionsRequest())


def _describe(transactional_id: str, shard: TransactionShard, now_ms: int, token: Token) -> Effects[Any]:
    return shard.describe_transaction(now_ms, token, transactional_id)
